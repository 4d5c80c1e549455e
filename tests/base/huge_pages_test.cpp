#include "base/huge_pages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace brigade::engine {
namespace {

using brigade::testing::run_ranks;

TEST(HugePages, ContentsStayWhateverTheSize) {
  run_ranks(1, [](ProcessGroup) {
    for (int64_t size : {0, 1, 1000, 1 << 20, (3 << 20) + 5}) {
      const at::Tensor tensor = at::arange(size, at::kFloat);
      base::advise_huge_pages(tensor);
      EXPECT_TRUE(at::equal(tensor, at::arange(size, at::kFloat))) << size;
    }
    base::advise_huge_pages(at::Tensor());
    base::advise_huge_pages(at::ones({3000, 1000}).t());
    base::advise_huge_pages(at::ones({4, 4}).to_sparse());
  });
}

TEST(HugePages, NewMemoryHasTheShapeAndCanBeWritten) {
  run_ranks(1, [](ProcessGroup) {
    for (int64_t rows : {0, 1, 700, 3001}) {
      const at::Tensor like = at::ones({rows, 1001}, at::kDouble);
      at::Tensor tensor = base::empty_in_huge_pages(like.sizes(), like.options());
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
}  // namespace brigade::engine
