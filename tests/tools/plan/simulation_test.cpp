// plan's simulation of many ranks, with numbers that were not measured but chosen.
#include "plan/simulation/simulation.h"

#include <gtest/gtest.h>

#include "plan/simulation/recorded_costs.h"
#include "tools/common/program.h"

namespace brigade::tool {
namespace {

using nlohmann::json;
using testing::Program;

constexpr double kMillion = 1e6, kGigabit = 1e9;

HookCost exact_hook() {
  return {.spec = "allreduce", .kind = kind_of("allreduce"), .bytes_per_value = 4};
}
HookCost byte_hook(double seconds_per_value = 0) {
  return {.spec = "int8",
          .kind = kind_of("int8"),
          .seconds_per_value = seconds_per_value,
          .bytes_per_value = 1,
          .piece_values = 1e5};
}
double over_link(double bytes) { return bytes * 8 / (kGigabit * kGoodput); }

TEST(Simulation, ALinkTakesItsBytesOverItsRate) {
  const Cluster pair{.link_bits = kGigabit};
  const auto ring = simulate(pair, exact_hook(), {{kMillion, 4 * kMillion}});
  EXPECT_NEAR(ring.seconds, over_link(4 * kMillion), 1e-9);
  EXPECT_NEAR(ring.wire_bytes, 4 * kMillion, 1e-3);
  const auto coded = simulate(pair, byte_hook(), {{kMillion, kMillion}});
  EXPECT_NEAR(coded.link_seconds, over_link(kMillion), 1e-9);
  EXPECT_NEAR(coded.seconds, over_link(kMillion), 0.02 * coded.seconds);
}

TEST(Simulation, AHostSendsAsMuchAsPlansFormulaSays) {
  for (const int ranks : {1, 2, 8}) {
    const Cluster cluster{.hosts = 4, .ranks_per_host = ranks, .link_bits = kGigabit};
    const Job job{.hosts = 4, .ranks_per_host = ranks, .link_bits = kGigabit};
    for (const HookCost& cost : {exact_hook(), byte_hook()}) {
      const BucketLoad load{kMillion, cost.bytes_per_value * kMillion};
      const auto played = simulate(cluster, cost, {load});
      const auto reckoned = predict(job, {}, cost, {load});
      EXPECT_NEAR(played.link_seconds, reckoned.link_seconds, 1e-9) << cost.spec << ranks;
      EXPECT_NEAR(played.wire_bytes, reckoned.wire_bytes, 1) << cost.spec << ranks;
    }
  }
}

TEST(Simulation, OnlyWhatARingAddsUpGrowsWithTheRanks) {
  const auto work = [](const std::string& name, int hosts) {
    const HookCost cost{.spec = name, .kind = kind_of(name), .seconds_per_value = 1e-9};
    const std::vector<BucketLoad> one{{kMillion, kMillion / 100}};
    const double played = simulate({.hosts = hosts}, cost, one).cpu_seconds;
    EXPECT_NEAR(played, predict({.hosts = hosts}, {}, cost, one).cpu_seconds, 1e-12)
        << name;
    return played;
  };
  for (const char* name : {"randomk", "powersgd"})
    EXPECT_NEAR(work(name, 8), work(name, 2), 1e-12) << name;
  EXPECT_NEAR(work("allreduce", 8), 1.75 * work("allreduce", 2), 1e-12);
}

TEST(Simulation, EverybodyWaitsForTheSlowestRank) {
  Cluster cluster{.hosts = 8,
                  .ranks_per_host = 8,
                  .link_bits = 100 * kGigabit,
                  .shared_by = Sharing::rank,
                  .compute_seconds = 0.1};
  const std::vector<BucketLoad> buckets(10, {kMillion / 10, kMillion / 10});
  const double even = simulate(cluster, byte_hook(), buckets).seconds;
  EXPECT_NEAR(even, 0.1, 0.005);
  cluster.straggler = 1.5;
  const auto slow = simulate(cluster, byte_hook(), buckets);
  EXPECT_NEAR(slow.seconds, 0.15, 0.005);
  EXPECT_LT(slow.exposed_seconds, 0.005);
  cluster.straggler = 1;
  cluster.jitter = 0.05;
  const auto uneven = simulate(cluster, byte_hook(), buckets);
  EXPECT_GT(uneven.seconds, 1.05 * even);  // the slowest of 64
  EXPECT_EQ(uneven.seconds, simulate(cluster, byte_hook(), buckets).seconds);
}

TEST(Simulation, NamespacesOfOneMachineShareItsCores) {
  Cluster cluster{.hosts = 4, .cores = 2, .shared_by = Sharing::host};
  const std::vector<BucketLoad> one{{kMillion, kMillion}};
  const double apart = simulate(cluster, byte_hook(1e-8), one).seconds;
  cluster.shared_by = Sharing::machine;
  const double together = simulate(cluster, byte_hook(1e-8), one).seconds;
  // Four ranks' work on two cores; apart each has two, for stations that work side by side.
  EXPECT_GT(together, 1.8 * apart);
  const double all_work = 4 * (2 + 3.0 / 4) / 2.5 * kMillion * 1e-8;
  EXPECT_GE(together, all_work / 2);
  EXPECT_LT(together, 1.3 * all_work / 2);  // the first and the last piece wait alone
}

TEST(Simulation, NcclTakesTreesWhereHopsCostMoreThanBytes) {
  Cluster many{.hosts = 128, .link_bits = 100 * kGigabit, .latency = 20e-6};
  const std::vector<BucketLoad> small{{1000, 4000}};
  EXPECT_NEAR(simulate(many, exact_hook(), small).seconds, 254 * 20e-6, 1e-5);
  many.nccl = true;
  EXPECT_NEAR(simulate(many, exact_hook(), small).seconds, 14 * 20e-6, 1e-5);
}

TEST(Simulation, BackwardHidesWhatItCan) {
  const std::vector<BucketLoad> buckets(20, {kMillion / 20, 4 * kMillion / 20});
  const Cluster cluster{.link_bits = kGigabit, .cores = 4, .compute_seconds = 0.5};
  const auto found = simulate(cluster, exact_hook(), buckets);
  EXPECT_NEAR(found.exposed_seconds, found.link_seconds / 20, 1e-9);
  const HookCost nothing{.spec = "noop", .kind = kind_of("noop"), .tolerance = -1};
  EXPECT_NEAR(simulate(cluster, nothing, buckets).seconds, 0.5, 1e-9);
}

// Ranks that share one core, of whom each message takes a millisecond of it.
Cluster on_one_core(int hosts, int ranks_per_host) {
  return {.hosts = hosts,
          .ranks_per_host = ranks_per_host,
          .cores = 1,
          .shared_by = Sharing::machine,
          .message_seconds = 1e-3,
          .host_message_seconds = 1e-3,
          .ring_message_seconds = 1e-3};
}

TEST(Simulation, EveryMessageOfAnExchangeTakesItsTimeOfACore) {
  HookCost whole = byte_hook();
  whole.piece_values = 0;
  const std::vector<BucketLoad> one{{kMillion, kMillion}};
  // Flat, each of four sends to three others in two phases.
  const auto flat = simulate(on_one_core(4, 1), whole, one);
  EXPECT_NEAR(flat.cpu_seconds, 6e-3, 1e-9);
  EXPECT_NEAR(flat.seconds, 4 * 6e-3, 1e-9);
  // By host, to its mate, twice to the one of its place, and to its mate again.
  const auto by_host = simulate(on_one_core(2, 2), whole, one);
  EXPECT_NEAR(by_host.cpu_seconds, 4e-3, 1e-9);
  EXPECT_NEAR(by_host.seconds, 4 * 4e-3, 1e-9);
}

TEST(Simulation, PiecesAreShorterWhereTheExchangeKnowsHosts) {
  HookCost cost = byte_hook();
  cost.piece_values = kMillion;
  cost.piece_values_by_host = kMillion / 4;
  const std::vector<BucketLoad> one{{kMillion, kMillion}};
  const auto messages = [&](int hosts, int ranks_per_host) {
    return simulate(on_one_core(hosts, ranks_per_host), cost, one).cpu_seconds / 1e-3;
  };
  EXPECT_NEAR(messages(2, 2), 4 * 4, 1e-6);
  EXPECT_NEAR(messages(4, 1), 6, 1e-6);
  cost.spec = "int8:flat=1";
  EXPECT_NEAR(messages(2, 2), 6, 1e-6);
}

TEST(Simulation, TwoPiecesAtATimeAreInTheFirstPhaseByHost) {
  HookCost cost = byte_hook();
  cost.piece_values_by_host = kMillion / 4;
  const Cluster slow{.hosts = 2, .ranks_per_host = 2, .latency = 1};
  // Two pairs of pieces, one after the other, and the second phase of the second pair.
  EXPECT_NEAR(simulate(slow, cost, {{kMillion, kMillion}}).seconds, 3, 1e-9);
  cost.spec = "int8:flat=1";
  EXPECT_NEAR(simulate(slow, cost, {{kMillion, kMillion}}).seconds, 2, 1e-9);
}

TEST(Simulation, EveryRoundOfARingWaitsForACore) {
  Cluster cluster = on_one_core(4, 1);
  const std::vector<BucketLoad> small{{1, 4}};
  EXPECT_NEAR(simulate(cluster, exact_hook(), small).seconds, 4 * 6e-3, 1e-9);
  cluster.cores = 4;
  EXPECT_NEAR(simulate(cluster, exact_hook(), small).seconds, 6e-3, 1e-9);
  // Three cores never stand still for long: four ranks' messages take turns with them.
  cluster.cores = 3;
  EXPECT_LT(simulate(cluster, exact_hook(), small).seconds, 10e-3);
  // Apart it is the same without playing the rounds.
  cluster.shared_by = Sharing::rank;
  EXPECT_NEAR(simulate(cluster, exact_hook(), small).seconds, 6e-3, 1e-9);
}

TEST(Simulation, AShapedLinkLetsItsBurstThroughAtOnce) {
  const Cluster pair{.link_bits = kGigabit, .link_burst = kMillion};
  EXPECT_NEAR(simulate(pair, exact_hook(), {{kMillion / 4, kMillion}}).seconds, 0, 1e-9);
  EXPECT_NEAR(simulate(pair, exact_hook(), {{kMillion, 4 * kMillion}}).seconds,
              over_link(3 * kMillion), 1e-9);
}

TEST(Simulation, RecordedCostsAreOfHooksThatWereMeasured) {
  const auto costs = h200_costs({"allreduce", "int8", "topk", "powersgd:rank=2,start=0"});
  ASSERT_EQ(costs.size(), 3U);
  EXPECT_EQ(costs[2].spec, "powersgd:rank=2,start=0");
  // One read and one write of all values at the speed of memory, at the least.
  EXPECT_GT(costs[1].seconds_per_value, 8 / 4.8e12);
  EXPECT_EQ(h200_costs({"fp16"})[0].kind.route, Route::ring);  // NCCL's own
}

TEST(Plan, SimulatesManyRanksAndSaysWhereCompressionPays) {
  const Program plan({"plan", "--simulate", "--speeds", "h200", "--params", "25M",
                      "--compute", "100", "--ranks-per-host", "8", "--hosts", "8,128",
                      "--link", "1gbit,400gbit", "--hooks", "fp16,int8"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const json found = plan.json();
  ASSERT_EQ(found["settings"].size(), 4U);
  const auto choice = [&](int setting) { return found["settings"][setting]["choice"]; };
  EXPECT_EQ(choice(0), "int8");
  EXPECT_EQ(choice(1), "allreduce");
  EXPECT_EQ(choice(2), "int8");
  EXPECT_EQ(found["pairs"], 8);
  EXPECT_EQ(found["pairs_that_pay"], 4);
  EXPECT_GT(found["pays_below_bits"]["128"], 1e9);
  EXPECT_LT(found["pays_below_bits"]["128"], 400e9);
  EXPECT_NE(plan.out.find("1024"), std::string::npos) << plan.out;
}

TEST(Plan, RefusesSimulationsThatAreTooLargeOrNotAskedFor) {
  const std::vector<std::string> rest{"--params", "1M", "--compute", "10", "--link"};
  const auto refused = [&](std::vector<std::string> words, const std::string& why) {
    words.insert(words.begin(), "plan");
    words.insert(words.end(), rest.begin(), rest.end());
    words.emplace_back("1gbit");
    const Program plan(words);
    EXPECT_EQ(plan.exit_code, 2);
    EXPECT_NE(plan.err.find(why), std::string::npos) << plan.err;
  };
  refused({"--simulate", "--hosts", "256", "--gpus", "8"}, "up to 1024 ranks");
  refused({"--hosts", "2,4"}, "--simulate only");
  refused({"--speeds", "h200"}, "--simulate");
  refused({"--simulate", "--speeds", "h200", "--straggler", "0.5"}, "--straggler");
}

}  // namespace
}  // namespace brigade::tool
