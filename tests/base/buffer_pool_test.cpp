#include "base/buffer_pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace brigade::base {
namespace {

using brigade::testing::run_ranks;

const void* memory_of(const at::Tensor& tensor) { return tensor.const_data_ptr(); }

TEST(BufferPool, GivesTheSmallestSpareBufferThatIsLargeEnough) {
  run_ranks(1, [](ProcessGroup) {
    BufferPool pool;
    at::Tensor large = pool.take(3000, at::kCPU), small = pool.take(1000, at::kCPU);
    const void* const at_large = memory_of(large);
    const void* const at_small = memory_of(small);
    pool.give_back(std::move(large));
    pool.give_back(std::move(small));

    at::Tensor first = pool.take(900, at::kCPU), second = pool.take(900, at::kCPU);
    EXPECT_EQ(first.numel(), 900);
    EXPECT_EQ(memory_of(first), at_small);
    EXPECT_EQ(memory_of(second), at_large);
    // A buffer keeps its size, even if only a part of it was taken.
    pool.give_back(std::move(second));
    EXPECT_EQ(memory_of(pool.take(3000, at::kCPU)), at_large);
  });
}

TEST(BufferPool, NoMemoryIsInUseTwice) {
  run_ranks(1, [](ProcessGroup) {
    BufferPool pool;
    pool.give_back(pool.take(100, at::kCPU));
    const at::Tensor first = pool.take(100, at::kCPU), second = pool.take(100, at::kCPU);
    EXPECT_NE(memory_of(first), memory_of(second));
  });
}

TEST(BufferPool, KeepsNoMoreBuffersThanWereTakenAtOnce) {
  run_ranks(1, [](ProcessGroup) {
    BufferPool pool;
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> all;
    for (int64_t bytes : {10, 20, 30, 40}) {
      at::Tensor memory = pool.take(bytes, at::kCPU);
      all.emplace_back(memory.storage().getWeakStorageImpl());
      pool.give_back(std::move(memory));
    }
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i].expired(), i + 1 < all.size()) << i;
  });
}

TEST(BufferPool, TrimFreesWhatWasTooLargeSinceTheLastTime) {
  run_ranks(1, [](ProcessGroup) {
    BufferPool pool;
    at::Tensor large = pool.take(3000, at::kCPU), small = pool.take(1000, at::kCPU);
    const c10::weak_intrusive_ptr<c10::StorageImpl> large_one(
        large.storage().getWeakStorageImpl());
    const c10::weak_intrusive_ptr<c10::StorageImpl> small_one(
        small.storage().getWeakStorageImpl());
    pool.give_back(std::move(large));
    pool.give_back(std::move(small));
    pool.trim();  // 3000 bytes were taken since it was made
    EXPECT_FALSE(large_one.expired());
    pool.trim();  // nothing was taken, so nothing is known
    EXPECT_FALSE(large_one.expired());
    pool.give_back(pool.take(1000, at::kCPU));
    pool.trim();
    EXPECT_TRUE(large_one.expired());
    EXPECT_FALSE(small_one.expired());
  });
}

}  // namespace
}  // namespace brigade::base
