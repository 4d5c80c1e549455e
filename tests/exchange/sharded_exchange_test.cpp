// Compares reduce-scatter, a change of the shards, and all-gather with the same in one
// process.
#include "exchange/sharded_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "engine/buckets.h"
#include "engine/engine.h"
#include "exchange/equal_messages.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::make_bucket;
using testing::run_ranks;

// Some are small and cannot be divided evenly, one is empty, and one is sent in place by up
// to four ranks.
const std::vector<int64_t> kLengths{7, (int64_t{1} << 20) + 13, 0, 1, 300};

// Values are integers, so that sums are exact.
at::Tensor gradient_of(int64_t length, int rank, at::ScalarType dtype) {
  return (at::arange(length, at::kFloat).remainder(5) + static_cast<float>(rank)).to(dtype);
}

class ShardedExchangeOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardedExchangeOf, ::testing::Values(2, 3, 4));

TEST_P(ShardedExchangeOf, EveryRankHasAllParametersChangedByTheMean) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      SCOPED_TRACE(at::toString(dtype));
      std::vector<at::Tensor> parameters, gradients, means;
      std::vector<ShardedParameter> sharded;
      std::vector<ShardedItem> items;
      for (const int64_t length : kLengths) {
        parameters.push_back(at::zeros({length}, dtype));
        sharded.emplace_back("p", parameters.back(), sharded.size(), 0, group.size());
        gradients.push_back(gradient_of(length, group.rank(), dtype));
        means.push_back(at::zeros({length}, dtype));
        for (int rank = 0; rank < group.size(); ++rank)
          means.back() += gradient_of(length, rank, dtype);
        means.back() /= group.size();
      }
      int64_t offset = 0;
      for (const ShardedParameter& each : sharded) {
        items.push_back({&each, offset});
        offset += each.parameter().numel();
      }

      ShardedExchange exchange;
      auto engine = Engine::make(group, std::string("sharded") + at::toString(dtype));
      std::mutex mutex;
      engine->set_hook(
          make_hook("sharded", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
            const auto change = [&](const ShardedItem& item, const at::Tensor& mean) {
              std::lock_guard lock(mutex);
              at::Tensor(item.parameter->shard(group.rank())).sub_(mean);
            };
            co_await exchange.run(items, bucket.buffer(), change, comm);
            co_return bucket.buffer();
          }));
      for (int step = 1; step <= 2; ++step) {
        exchange.begin_pass();
        engine->run(make_bucket(0, 1, at::cat(gradients)))->waitAndThrow();
        for (size_t i = 0; i < parameters.size(); ++i)
          EXPECT_TRUE(at::allclose(parameters[i], -step * means[i])) << i;
      }
      engine->close();
    }
  });
}

TEST_P(ShardedExchangeOf, MoreBucketsThanHaveMemoryAtOnceAllComeThrough) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    constexpr size_t kBuckets = 7;
    std::vector<at::Tensor> parameters;
    std::vector<ShardedParameter> sharded;
    for (size_t i = 0; i < kBuckets; ++i) {
      parameters.push_back(at::zeros({100 + static_cast<int64_t>(i)}));
      sharded.emplace_back("p", parameters.back(), i, 0, group.size());
    }
    ShardedExchange exchange;
    auto engine = Engine::make(group, "buckets");
    engine->set_hook(
        make_hook("sharded", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
          const std::vector<ShardedItem> items(1, ShardedItem{&sharded[bucket.index()]});
          const auto change = [&](const ShardedItem& item, const at::Tensor& mean) {
            at::Tensor(item.parameter->shard(group.rank())).add_(mean);
          };
          co_await exchange.run(items, bucket.buffer(), change, comm);
          co_return bucket.buffer();
        }));
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (size_t i = 0; i < kBuckets; ++i) {
      const auto value = static_cast<float>(i + 1) * static_cast<float>(group.size());
      futures.push_back(
          engine->run(make_bucket(i, kBuckets, at::full(parameters[i].sizes(), value))));
    }
    for (const auto& future : futures) future->waitAndThrow();
    for (size_t i = 0; i < kBuckets; ++i) {
      const auto value = static_cast<float>(i + 1) * static_cast<float>(group.size());
      EXPECT_TRUE(at::equal(parameters[i], at::full(parameters[i].sizes(), value))) << i;
    }
    engine->close();
  });
}

TEST_P(ShardedExchangeOf, AnEqualMessageComesFromEveryOtherRank) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    auto engine = Engine::make(group, "equal");
    at::Tensor incoming = at::full({3 * (group.size() - 1)}, -1.0F);
    engine->set_hook(make_hook("equal", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      at::Tensor outgoing = at::full_like(incoming, -2.0F);
      outgoing.narrow(0, 0, 3).copy_(bucket.buffer());
      co_await send_to_all_others(comm, outgoing, incoming);
      co_return bucket.buffer();
    }));
    const auto message = [](int rank) { return at::arange(3, at::kFloat) + 10.0F * rank; };
    engine->run(make_bucket(0, 1, message(group.rank())))->waitAndThrow();
    int64_t place = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      EXPECT_TRUE(at::equal(incoming.narrow(0, 3 * place++, 3), message(rank))) << rank;
    }
    engine->close();
  });
}

}  // namespace
}  // namespace brigade
