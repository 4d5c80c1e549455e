#include "base/huge_pages.h"

#include <ATen/ATen.h>

#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "base/input_file.h"

namespace brigade::base {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{1} << 21;

uintptr_t round_up(uintptr_t address) {
  return (address + kHugePage - 1) / kHugePage * kHugePage;
}

#if defined(__linux__)
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack

// MADV_COLLAPSE ignores the setting, so it is read here.
bool allowed() {
  static const bool answer = [] {
    const std::string setting = read_whole("/sys/kernel/mm/transparent_hugepage/enabled");
    return !setting.empty() && setting.find("[never]") == std::string::npos;
  }();
  return answer;
}

void advise(uintptr_t begin, uintptr_t end) {
  void* const memory = reinterpret_cast<void*>(begin);
  // Both are only advice; older kernels refuse them without harm.
  madvise(memory, end - begin, MADV_HUGEPAGE);
  madvise(memory, end - begin, kCollapse);
}
#else
bool allowed() { return false; }
void advise(uintptr_t, uintptr_t) {}
#endif

}  // namespace

void advise_huge_pages(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_sparse() || !tensor.is_cpu() ||
      !tensor.is_contiguous()) {
    return;
  }
  const auto memory = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t begin = round_up(memory);
  const uintptr_t end = (memory + tensor.nbytes()) / kHugePage * kHugePage;
  if (begin < end && allowed()) advise(begin, end);
}

at::Tensor empty_in_huge_pages(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes =
      static_cast<size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  if (!options.device().is_cpu() || bytes < kHugePage || !allowed()) {
    return at::empty(sizes, options);
  }
  // Allocates exactly this tensor, not a slice of a padded one, so that saving it writes no
  // padding.
  void* const memory = std::aligned_alloc(kHugePage, round_up(bytes));
  if (memory == nullptr) return at::empty(sizes, options);  // throws the error
  at::Tensor tensor = at::from_blob(memory, sizes, std::free, options);
  advise_huge_pages(tensor);
  return tensor;
}

}  // namespace brigade::base
