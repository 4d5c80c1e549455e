// Compares the two-phase all-reduce of ranks that share hosts with the same arithmetic in
// one process; its error feedback, and what it sends to other hosts.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/buckets.h"
#include "engine/engine.h"
#include "exchange/coded.h"
#include "exchange/two_phase.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::all_codecs;
using testing::chunk_length;
using testing::make_bucket;
using testing::run_ranks;
using testing::two_phase_mean;
using testing::values_of;
using Hosts = std::vector<int>;  // by rank

// The expected result of a segment. A chunk's owner adds its host_ranks' values to its own.
at::Tensor segment_by_host(const std::vector<at::Tensor>& inputs, const HostLayout& layout,
                           const Codec& codec) {
  const int64_t n = inputs[0].numel(), part = chunk_length(n, layout.places(), codec);
  std::vector<at::Tensor> parts;
  for (int64_t place = 0; place * part < n; ++place) {
    const int64_t begin = place * part, length = std::min(part, n - begin);
    std::vector<at::Tensor> sums;
    for (const auto& host_ranks : layout.ranks) {
      at::Tensor sum = inputs[host_ranks[place]].narrow(0, begin, length).clone();
      for (int mate : host_ranks) {
        if (mate != host_ranks[place]) sum += inputs[mate].narrow(0, begin, length);
      }
      sums.push_back(sum);
    }
    parts.push_back(two_phase_mean(sums, codec, static_cast<int64_t>(inputs.size())));
  }
  return at::cat(parts);
}

// Equal to the exchange's own numbers.
int64_t segment_values(const HostLayout& layout) {
  return int64_t{1} << (layout.shares_hosts() ? 19 : 21);
}

at::Tensor result_by_host(int64_t n, const HostLayout& layout, const Codec& codec) {
  std::vector<at::Tensor> inputs, parts;
  for (size_t rank = 0; rank < layout.host_of.size(); ++rank)
    inputs.push_back(values_of(n, static_cast<int>(rank), 0));
  const int64_t most = segment_values(layout);
  for (int64_t begin = 0; begin < n; begin += most) {
    std::vector<at::Tensor> segment;
    for (const at::Tensor& whole : inputs)
      segment.push_back(whole.narrow(0, begin, std::min(most, n - begin)));
    parts.push_back(segment_by_host(segment, layout, codec));
  }
  return at::cat(parts);
}

// Works with any codec and residual, one after the other.
struct Exchanges {
  explicit Exchanges(ProcessGroup group) : engine(Engine::make(group, "exchange")) {
    engine->set_hook(
        make_hook("exchange", [this](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
          Residuals residuals(residual);
          residuals.moved = moved;
          co_await two_phase->all_reduce(bucket.buffer(), residuals, comm);
          // Ranks that skipped some collectives are still in step with the others.
          at::Tensor ranks = at::ones({1});
          co_await comm.all_reduce(ranks);
          EXPECT_EQ(ranks.item<int>(), comm.size());
          co_return bucket.buffer();
        }));
  }
  ~Exchanges() { engine->close(); }
  at::Tensor run(const at::Tensor& mine) const {
    auto future = engine->run(make_bucket(0, 1, mine.clone()));
    future->waitAndThrow();
    return future->value().toTensor();
  }
  std::shared_ptr<Engine> engine;
  std::unique_ptr<TwoPhase> two_phase;
  at::Tensor residual;
  bool moved = false;
};

class HostsExchange : public ::testing::TestWithParam<Hosts> {
 protected:
  static void run(const std::function<void(ProcessGroup)>& body) {
    run_ranks(static_cast<int>(GetParam().size()), body, {.hosts = GetParam()});
  }
};
INSTANTIATE_TEST_SUITE_P(Hosts, HostsExchange,
                         ::testing::Values(Hosts{0, 0, 1, 1}, Hosts{0, 1},
                                           Hosts{0, 0, 0, 1},
                                           Hosts{0, 1, 2, 1, 0, 0, 2, 1}),
                         [](const auto& one) {
                           std::string name;
                           for (int host : one.param) name += std::to_string(host);
                           return name;
                         });

void expect_the_bits_of_one_place(const ProcessGroup& group, Exchanges& exchange) {
  for (const auto& codec : all_codecs()) {
    exchange.two_phase = std::make_unique<TwoPhase>(codec);
    const bool large = codec->name() == all_codecs()[2]->name();
    for (int64_t n : {int64_t{1}, int64_t{257}, int64_t{1001}, int64_t{4097},
                      large ? segment_values(group.layout()) + 1001 : int64_t{70001}}) {
      SCOPED_TRACE(std::string(codec->name()) + " of " + std::to_string(n));
      const at::Tensor result = exchange.run(values_of(n, group.rank(), 0));
      const at::Tensor expected = result_by_host(n, group.layout(), *codec);
      EXPECT_TRUE(at::equal(result, expected)) << (result - expected).abs().max();
    }
  }
}

// Compares with float64: the mean is as exact as the codec allows, wherever the ranks are.
void expect_the_mean(const ProcessGroup& group, Exchanges& exchange) {
  const std::vector<double> tolerances{1e-3, 8e-3, 1.5e-2, 0.2, 1.5e-2, 5e-2, 0.4};
  const auto codecs = all_codecs();
  for (size_t index = 0; index < codecs.size(); ++index) {
    SCOPED_TRACE(std::string(codecs[index]->name()));
    exchange.two_phase = std::make_unique<TwoPhase>(codecs[index]);
    const int64_t n = 50'021;
    at::Tensor mean = at::zeros({n}, at::kDouble);
    for (int rank = 0; rank < group.size(); ++rank)
      mean += values_of(n, rank, 0).to(at::kDouble) / group.size();
    const at::Tensor off =
        exchange.run(values_of(n, group.rank(), 0)).to(at::kDouble) - mean;
    // Measured in units of one rank's values, as in the table of hooks.
    EXPECT_LE(off.norm().item<double>() / std::sqrt(static_cast<double>(n)),
              tolerances[index]);
  }
}

// Sum of the results + mean of the residuals = sum of the mean inputs, for any number of
// steps and any first residuals.
void expect_the_residual_to_be_what_is_lacking(const ProcessGroup& group,
                                               Exchanges& exchange) {
  exchange.two_phase = std::make_unique<TwoPhase>(make_int8_codec());
  for (int64_t n : {int64_t{1}, int64_t{4097}, int64_t{70001}}) {
    SCOPED_TRACE(n);
    const auto mean_residual = [&] {
      at::Tensor sum = exchange.residual.to(at::kDouble);
      group.all_reduce(sum);
      return sum / group.size();
    };
    exchange.residual = 0.01 * values_of(n, group.rank(), 99);  // as if it were loaded
    at::Tensor in = mean_residual(), out = at::zeros({n}, at::kDouble);
    for (int64_t step = 0; step < 6; ++step) {
      exchange.moved = step == 0;
      out += exchange.run(values_of(n, group.rank(), step));
      for (int rank = 0; rank < group.size(); ++rank)
        in += values_of(n, rank, step).to(at::kDouble) / group.size();
    }
    EXPECT_LE((in - out - mean_residual()).abs().max().item<double>(), 1e-5);
    if (n > 1) {
      EXPECT_GT((in - out).abs().max().item<double>(), 1e-4) << "nothing was rounded";
    }
  }
}

void expect_the_bytes_of_one_rank_a_host(const ProcessGroup& group, Exchanges& exchange) {
  const HostLayout& layout = group.layout();
  const auto codec = std::shared_ptr<Codec>(make_int8_codec());
  const int64_t n = 3 * 8 * 4096, hosts = layout.hosts();
  const int64_t of_a_host = 2 * (hosts - 1) * codec->wire_bytes(n / hosts);
  const auto sent = [&](bool flat) {
    exchange.two_phase = std::make_unique<TwoPhase>(codec, flat);
    exchange.run(at::ones({n}));
    // This leaves out the all-reduce of one value at the end.
    const int last = (group.rank() + group.size() - 1) % group.size();
    const bool away = layout.host_of[last] != layout.host;
    const int64_t extra = away ? 2 * 4 * (group.size() - 1) / group.size() : 0;
    at::Tensor bytes = at::zeros({hosts}, at::kLong);
    bytes[layout.host] = exchange.engine->stats().last_step.bytes_to_other_hosts - extra;
    group.all_reduce(bytes);
    return bytes;
  };
  EXPECT_TRUE(sent(true).gt(of_a_host - 1).all().item<bool>());
  EXPECT_EQ(exchange.engine->stats().shape, "flat");
  EXPECT_TRUE(at::equal(sent(false), at::full({hosts}, of_a_host, at::kLong)));
  EXPECT_EQ(exchange.engine->stats().shape, layout.shares_hosts() ? layout.text() : "flat");
}

TEST_P(HostsExchange, GivesEveryRankTheBitsOfTheSameSumDoneInOnePlaceAndTheMean) {
  run([](ProcessGroup group) {
    Exchanges exchange(group);
    expect_the_bits_of_one_place(group, exchange);
    expect_the_mean(group, exchange);
  });
}

TEST_P(HostsExchange, AHostSendsAsIfItHadOneRankAndNothingIsLostInTheMean) {
  run([](ProcessGroup group) {
    Exchanges exchange(group);
    expect_the_bytes_of_one_rank_a_host(group, exchange);
    expect_the_residual_to_be_what_is_lacking(group, exchange);
  });
}

}  // namespace
}  // namespace brigade
