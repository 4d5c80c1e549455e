#include "base/huge_pages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/ranks.h"

namespace brigade::base {
namespace {

using brigade::testing::run_ranks;

constexpr int64_t kHugePage = 1 << 21;
constexpr int64_t kLarge = 16 * kHugePage;  // bytes

// The kernel's data on the mapping that contains the tensor's middle.
struct Mapping {
  bool advised = false;    // MADV_HUGEPAGE has been called for it
  int64_t huge_bytes = 0;  // in huge pages
};
Mapping mapping_of(const at::Tensor& tensor) {
  const auto address =
      reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) + tensor.nbytes() / 2;
  std::ifstream file("/proc/self/smaps");
  Mapping mapping;
  std::string line;
  bool inside = false;
  while (std::getline(file, line)) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      inside = begin <= address && address < end;
    if (!inside) continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "AnonHugePages:") {
      words >> mapping.huge_bytes;
      mapping.huge_bytes *= 1024;  // the kernel counts in kB
    }
    if (word != "VmFlags:") continue;
    while (words >> word) mapping.advised |= word == "hg";
  }
  return mapping;
}

bool setting_forbids() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  return !std::getline(file, setting) || setting.find("[never]") != std::string::npos;
}

// Whether this kernel can merge pages that are in use: Linux 6.1 and later can.
bool can_collapse() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  void* const memory = std::aligned_alloc(kHugePage, kHugePage);
  *static_cast<volatile char*>(memory) = 1;
  const bool can = madvise(memory, kHugePage, kCollapse) == 0 || errno != EINVAL;
  std::free(memory);
  return can;
}

TEST(HugePages, MemoryInUseIsBroughtIntoHugePages) {
  if (setting_forbids()) GTEST_SKIP() << "the system's setting forbids huge pages";
  run_ranks(1, [](ProcessGroup) {
    const at::Tensor tensor = at::ones({kLarge}, at::kByte);
    EXPECT_FALSE(mapping_of(tensor).advised);
    advise_huge_pages(tensor);
    EXPECT_TRUE(mapping_of(tensor).advised);
    if (can_collapse()) {
      EXPECT_GE(mapping_of(tensor).huge_bytes, kHugePage);
    }
  });
}

TEST(HugePages, NewMemoryIsInHugePagesFromItsFirstByteOn) {
  if (setting_forbids()) GTEST_SKIP() << "the system's setting forbids huge pages";
  run_ranks(1, [](ProcessGroup) {
    const at::Tensor tensor = empty_in_huge_pages({kLarge}, at::kByte).fill_(1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kHugePage, 0);
    const Mapping mapping = mapping_of(tensor);
    EXPECT_TRUE(mapping.advised);
    EXPECT_GE(mapping.huge_bytes, kHugePage);
  });
}

TEST(HugePages, ContentsStayWhateverTheSize) {
  run_ranks(1, [](ProcessGroup) {
    for (int64_t size : {0, 1, 1000, 1 << 20, (3 << 20) + 5}) {
      const at::Tensor tensor = at::arange(size, at::kFloat);
      advise_huge_pages(tensor);
      EXPECT_TRUE(at::equal(tensor, at::arange(size, at::kFloat))) << size;
    }
    advise_huge_pages(at::Tensor());
    advise_huge_pages(at::ones({3000, 1000}).t());
    advise_huge_pages(at::ones({4, 4}).to_sparse());
  });
}

TEST(HugePages, NewMemoryHasTheShapeAndCanBeWritten) {
  run_ranks(1, [](ProcessGroup) {
    for (int64_t rows : {0, 1, 700, 3001}) {
      const at::Tensor like = at::ones({rows, 1001}, at::kDouble);
      at::Tensor tensor = empty_in_huge_pages(like.sizes(), like.options());
      EXPECT_EQ(tensor.sizes(), like.sizes());
      EXPECT_EQ(tensor.scalar_type(), at::kDouble);
      EXPECT_TRUE(tensor.is_contiguous());
      EXPECT_EQ(tensor.storage().nbytes(), like.nbytes());
      tensor.copy_(like);
      EXPECT_TRUE(at::equal(tensor, like));
    }
  });
}

}  // namespace
}  // namespace brigade::base
