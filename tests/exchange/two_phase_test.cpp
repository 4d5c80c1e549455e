// Compares the two-phase all-reduce with the same arithmetic in one process, and checks its
// error feedback.
#include "exchange/two_phase.h"

#include <gtest/gtest.h>

#include "engine/buckets.h"
#include "engine/engine.h"
#include "exchange/coded.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::all_codecs;
using testing::make_bucket;
using testing::run_ranks;
using testing::two_phase_mean;
using testing::values_of;

// Equal to the exchange's own number.
constexpr int64_t kSegment = int64_t{1} << 21;

at::Tensor reference(const std::vector<at::Tensor>& inputs, const Codec& codec) {
  if (inputs.size() == 1) return inputs[0];
  const int64_t n = inputs[0].numel();
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < n; begin += kSegment) {
    std::vector<at::Tensor> segment;
    for (const at::Tensor& whole : inputs)
      segment.push_back(whole.narrow(0, begin, std::min(kSegment, n - begin)));
    parts.push_back(two_phase_mean(segment, codec, static_cast<int64_t>(inputs.size())));
  }
  return at::cat(parts);
}

// The engine's result of one exchange of `mine`.
at::Tensor exchanged(Engine& engine, const at::Tensor& mine) {
  auto future = engine.run(make_bucket(0, 1, mine.clone()));
  future->waitAndThrow();
  return future->value().toTensor();
}

// Works with any codec and residual, one after the other.
struct Exchange {
  explicit Exchange(ProcessGroup group) : engine(Engine::make(group, "exchange")) {
    engine->set_hook(
        make_hook("exchange", [this](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
          co_await two_phase->all_reduce(bucket.buffer(), residual, comm);
          co_return bucket.buffer();
        }));
  }
  ~Exchange() { engine->close(); }
  std::shared_ptr<Engine> engine;
  void use(std::shared_ptr<Codec> codec) {
    two_phase = std::make_unique<brigade::TwoPhase>(std::move(codec));
  }
  std::unique_ptr<brigade::TwoPhase> two_phase;
  at::Tensor residual;
};

class TwoPhaseExchange : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TwoPhaseExchange, ::testing::Values(1, 2, 3, 4));

TEST_P(TwoPhaseExchange, GivesEveryRankTheBitsOfTheSameSumDoneInOnePlace) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Exchange exchange(group);
    int root = 0;  // the rank that does the sum in one place
    for (int64_t n : {1, 3, 17, 255, 256, 257, 511, 513, 1001, 2048, 4097, 70001,
                      static_cast<int>(2 * kSegment + 1001)}) {
      std::vector<at::Tensor> inputs;  // by rank
      for (int rank = 0; rank < group.size(); ++rank)
        inputs.push_back(values_of(n, rank, 0));
      for (const auto& codec : all_codecs()) {
        SCOPED_TRACE(std::string(codec->name()) + " of " + std::to_string(n));
        exchange.use(codec);
        const at::Tensor result = exchanged(*exchange.engine, inputs[group.rank()]);
        at::Tensor expected = at::empty({n});
        root = (root + 1) % group.size();
        if (group.rank() == root) expected = reference(inputs, *codec).clone();
        group.broadcast(expected, root);
        EXPECT_TRUE(at::equal(result, expected));
      }
    }
  });
}

TEST_P(TwoPhaseExchange, IsExactWhereTheCodecsAre) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Exchange exchange(group);
    for (const auto& codec : all_codecs()) {
      exchange.use(codec);
      SCOPED_TRACE(std::string(codec->name()));
      // After the rotation only whole blocks of such values have few levels.
      const int64_t n = codec->name() == "int4" ? 1024 : 1000;
      // The values are 0 and 12 (the rank + 1): codes 0 and the last one in every block.
      // Their mean 6 (ranks + 1) is small enough for the half types.
      const at::Tensor on = at::arange(n).remainder(2).eq(1).to(at::kFloat);
      const at::Tensor result = exchanged(*exchange.engine, on * 12.0 * (group.rank() + 1));
      const at::Tensor mean = on * 6.0 * (group.size() + 1);
      EXPECT_TRUE(at::allclose(result, mean, 1e-6, 0)) << (result - mean).abs().max();
      EXPECT_TRUE(at::equal(result.eq(0), mean.eq(0))) << "zero must stay zero";
    }
  });
}

TEST_P(TwoPhaseExchange, NothingToSendIsNoCollective) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Exchange exchange(group);
    for (const auto& codec : all_codecs()) {
      exchange.use(codec);
      EXPECT_EQ(exchanged(*exchange.engine, at::empty({0})).numel(), 0);
    }
    EXPECT_EQ(exchange.engine->stats().total.collectives, 0);
  });
}

// The input of all codecs: this rank's values in each step, and the sum of the means over
// the ranks after the first step and after the last.
struct Steps {
  Steps(int64_t number, int64_t n, const ProcessGroup& group)
      : in(at::zeros({n}, at::kDouble)) {
    for (int64_t step = 0; step < number; ++step) {
      for (int rank = 0; rank < group.size(); ++rank) {
        const at::Tensor values = values_of(n, rank, step);
        in.add_(values.to(at::kDouble), 1.0 / group.size());
        if (rank == group.rank()) mine.push_back(values);
      }
      if (step == 0) in_first = in.clone();
    }
  }
  std::vector<at::Tensor> mine;
  at::Tensor in_first, in;
};

// Sum of the results + mean of the residuals = sum of the mean inputs, after any number of
// steps.
TEST_P(TwoPhaseExchange, TheMeanResidualIsWhatTheResultsLack) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Exchange exchange(group);
    if (group.size() == 1) return;
    for (int64_t n : {int64_t{1}, int64_t{257}, int64_t{4097}, kSegment + 17}) {
      // A few values show whether errors add up; many are needed for the segments.
      const Steps steps(n > kSegment ? 3 : 8, n, group);
      for (const auto& codec : all_codecs()) {
        if (!codec->takes_residual()) continue;
        exchange.use(codec);
        SCOPED_TRACE(std::string(codec->name()) + " of " + std::to_string(n));
        exchange.residual = at::zeros({n});
        at::Tensor out = at::zeros({n}, at::kDouble);
        double first = 0;
        for (size_t step = 0; step < steps.mine.size(); ++step) {
          out += exchanged(*exchange.engine, steps.mine[step]);
          if (step == 0) first = (steps.in_first - out).abs().max().item<double>();
        }
        const at::Tensor& in = steps.in;
        const double last = (in - out).abs().max().item<double>();
        at::Tensor lack = exchange.residual.to(at::kDouble);
        group.all_reduce(lack);
        lack /= group.size();
        EXPECT_LE((in - out - lack).abs().max().item<double>(), 1e-5);
        // The final error is that of one step, not of eight.
        EXPECT_LE(last, 4 * first + 0.05) << first;
        if (n > 1) {
          EXPECT_GT(lack.abs().max().item<double>(), 0) << "nothing was rounded";
        }
      }
    }
    exchange.residual = at::Tensor();
  });
}

TEST_P(TwoPhaseExchange, TrafficDoesNotGrowWithTheNumberOfRanks) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Exchange exchange(group);
    const int64_t n = 12 * 4096, w = group.size();
    for (const auto& codec : all_codecs()) {
      exchange.use(codec);
      exchanged(*exchange.engine, at::ones({n}));
      EXPECT_EQ(exchange.engine->stats().last_step.bytes_sent,
                2 * (w - 1) * codec->wire_bytes(n / w))
          << codec->name();
    }
  });
}

}  // namespace
}  // namespace brigade
