// plan's arithmetic, with numbers that were not measured but chosen.
#include <gtest/gtest.h>

#include "brigade/hooks/registry.h"
#include "common/hook_choice.h"
#include "exchange/chunks.h"
#include "plan/advice.h"
#include "plan/cost.h"

namespace brigade::tool {
namespace {

constexpr double kValues = 1e6;
constexpr double kMbit = 1e6, kGbit = 1e9;

// One bucket of a million values that goes in one piece.
const std::vector<BucketLoad> kOneBucket{{kValues, 4 * kValues}};

HookCost allreduce() {
  return {.spec = "allreduce", .kind = kind_of("allreduce"), .bytes_per_value = 4};
}
HookCost int8(double seconds_per_value) {
  return {.spec = "int8",
          .kind = kind_of("int8"),
          .seconds_per_value = seconds_per_value,
          .bytes_per_value = 1,
          .piece_values = 1e5,
          .tolerance = 0.015};
}

TEST(PlanModel, ALinkTakesItsBytesOverItsRate) {
  const Job job{.link_bits = 100 * kMbit};
  const Prediction found = predict(job, {}, allreduce(), kOneBucket);
  EXPECT_NEAR(found.step_seconds, 32e6 / (100 * kMbit * kGoodput), 1e-9);
  EXPECT_DOUBLE_EQ(found.wire_bytes, 4e6);
  EXPECT_DOUBLE_EQ(found.exposed_seconds, found.step_seconds);
}

TEST(PlanModel, ARingOfManyRanksSendsTwiceAsMuchAsAPairAndPaysForItsHops) {
  const Job job{.hosts = 8, .link_bits = kGbit};
  const Prediction found = predict(job, {.latency = 1e-3}, allreduce(), kOneBucket);
  EXPECT_DOUBLE_EQ(found.wire_bytes, 2 * 7.0 / 8 * 4e6);
  EXPECT_NEAR(found.step_seconds, found.wire_bytes * 8 / (kGbit * kGoodput) + 14e-3, 1e-9);
}

TEST(PlanModel, RanksOfOneHostShareItsLinkUnlessARingGoesThroughThem) {
  const Job job{.hosts = 2, .ranks_per_host = 4, .link_bits = kGbit};
  const Prediction ring = predict(job, {}, allreduce(), kOneBucket);
  EXPECT_NEAR(ring.link_seconds, ring.wire_bytes * 8 / (kGbit * kGoodput), 1e-9);
  HookCost flat = int8(0);
  flat.spec = "int8:flat=1";
  const Prediction spread = predict(job, {}, flat, {{kValues, kValues}});
  EXPECT_NEAR(spread.link_seconds, spread.wire_bytes * 4 * 4 / 7 * 8 / (kGbit * kGoodput),
              1e-9);
}

TEST(PlanModel, AnExchangeThatKnowsHostsSendsFromAHostAsIfItHadOneRank) {
  const auto link_seconds = [](int ranks_per_host) {
    const Job job{.hosts = 4, .ranks_per_host = ranks_per_host, .link_bits = kGbit};
    return predict(job, {}, int8(0), {{kValues, kValues}}).link_seconds;
  };
  EXPECT_NEAR(link_seconds(1), 2 * 3.0 / 4 * kValues * 8 / (kGbit * kGoodput), 1e-9);
  EXPECT_NEAR(link_seconds(8), link_seconds(1), 1e-9);
  // Inside, three quarters of the values go out as float32, and the own quarter to three.
  const Job pair{.hosts = 2, .ranks_per_host = 4};
  EXPECT_NEAR(predict(pair, {}, int8(0), {{kValues, kValues}}).wire_bytes,
              kValues / 4.0 + 0.75 * 5 * kValues, 1e-6);
}

TEST(PlanModel, OneHostNeedsNoLink) {
  const Job job{.hosts = 1, .ranks_per_host = 2, .link_bits = kMbit};
  EXPECT_EQ(predict(job, {}, allreduce(), kOneBucket).step_seconds, 0);
}

TEST(PlanModel, OneRankReducesNothing) {
  const Job job{.hosts = 1, .link_bits = kMbit, .compute_seconds = 0.25};
  EXPECT_EQ(predict(job, {}, allreduce(), kOneBucket).step_seconds, 0.25);
}

TEST(PlanModel, OnOneCoreEverythingAddsUp) {
  const Job job{.compute_seconds = 0.010,
                .forward_share = 0,
                .compute_on_cpu = true,
                .cores_per_rank = 1};
  const Machine machine{.transport_seconds_per_byte = 1e-9};
  const Prediction found = predict(job, machine, int8(5e-9), {{kValues, kValues}});
  // 10 ms of backward, 5 of coding, 1 of transport.
  EXPECT_NEAR(found.step_seconds, 0.016, 1e-9);
  EXPECT_NEAR(found.cpu_seconds, 0.006, 1e-9);
}

TEST(PlanModel, PiecesAreCodedWhileOthersTravel) {
  const Job job{.link_bits = 100 * kMbit, .cores_per_rank = 8};
  const Prediction found = predict(job, {}, int8(20e-9), {{kValues, kValues}});
  const double link = found.link_seconds, cpu = found.cpu_seconds;
  EXPECT_NEAR(link, 0.0837, 1e-3);
  EXPECT_NEAR(cpu, 0.020, 1e-9);
  EXPECT_GT(found.step_seconds, link);
  EXPECT_LT(found.step_seconds, link + cpu / 2);
}

TEST(PlanModel, WhatBackwardHidesCostsNothing) {
  // Twenty buckets; the link needs a tenth of the backward pass.
  const std::vector<BucketLoad> buckets(20, {kValues / 20, 4 * kValues / 20});
  const Job job{.link_bits = kGbit, .compute_seconds = 0.5, .cores_per_rank = 4};
  const Prediction found = predict(job, {}, allreduce(), buckets);
  EXPECT_NEAR(found.link_seconds, 0.0335, 1e-3);
  // Of the last bucket nothing is left to hide behind.
  EXPECT_NEAR(found.exposed_seconds, found.link_seconds / 20, 1e-9);
}

TEST(PlanModel, NoopTakesTheComputeAlone) {
  const HookCost noop{.spec = "noop", .kind = kind_of("noop"), .tolerance = -1};
  const Job job{.link_bits = kMbit, .compute_seconds = 0.125};
  const Prediction found = predict(job, {.latency = 1}, noop, kOneBucket);
  EXPECT_DOUBLE_EQ(found.step_seconds, 0.125);
  EXPECT_EQ(found.wire_bytes, 0);
}

TEST(PlanModel, BucketsAreThoseOfDistributedDataParallel) {
  // Sixteen layers of 4 MiB: one closes the first bucket, seven each later one.
  const ShapeList shapes(16, {1024, 1024});
  const auto buckets = buckets_of(shapes, allreduce(), 1);
  ASSERT_EQ(buckets.size(), 4U);
  const double layer = 1024 * 1024;
  EXPECT_EQ(buckets[0].values, layer);
  EXPECT_EQ(buckets[1].values, 7 * layer);
  EXPECT_EQ(buckets[3].values, layer);
  EXPECT_EQ(buckets[1].payload_bytes, 4 * 7 * layer);
}

TEST(PlanModel, LowRankHooksSendTheirFactors) {
  const HookCost power{.spec = "powersgd:rank=2", .kind = kind_of("powersgd")};
  const auto one = buckets_of({{1000}, {64, 32, 3, 3}, {4, 4}}, power, 2);
  ASSERT_EQ(one.size(), 1U);
  // A vector and a matrix too small to gain as they are, of the kernel two columns each
  // way.
  EXPECT_EQ(one[0].payload_bytes, 4 * (1000 + 2 * (64 + 288) + 16));
  const HookCost in_turns = cost_of("powersgd:rank=2,rounds=1", {}, {}, {.values = 1});
  EXPECT_EQ(in_turns.kind.phases, 1);
  EXPECT_EQ(buckets_of({{1000}, {64, 32, 3, 3}, {4, 4}}, in_turns, 2)[0].payload_bytes,
            4 * (1000 + 64 + 288 + 16));
  const HookCost batched{.spec = "batched_powersgd:rank=2",
                         .kind = kind_of("batched_powersgd")};
  const auto square = buckets_of({{1000, 1000}}, batched, 2);
  EXPECT_EQ(square[0].payload_bytes, 4 * 2 * 2 * 1000);
}

TEST(PlanModel, EveryHookOfTheTableHasItsKind) {
  for (const HookEntry& entry : hook_table()) {
    const HookKind kind = kind_of(entry.name);
    EXPECT_EQ(kind.route == Route::none, entry.tolerance < 0) << entry.name;
    const bool has_rank = std::find(entry.options.begin(), entry.options.end(), "rank") !=
                          entry.options.end();
    EXPECT_EQ(kind.low_rank, has_rank) << entry.name;
  }
}

TEST(PlanCost, ASmallAndALargeSampleTellWhatAStepAndWhatAValueCosts) {
  const Machine machine{.transport_seconds_per_byte = 1e-9};
  const ProbeSample small{.values = 1e6,
                          .cpu_seconds = 0.001 + 0.002 + 0.005 + 0.001,
                          .base_seconds = 0.001,
                          .wire_bytes = 1e6,
                          .collectives = 4,
                          .buckets = 1,
                          .decode_share = 0.4};
  ProbeSample large = small;
  large.values = 4e6;
  large.base_seconds = 0.004;
  large.wire_bytes = 4e6;
  large.collectives = 16;
  large.buckets = 2;
  large.cpu_seconds = 0.004 + 0.002 + 0.020 + 0.004;
  const HookCost cost = cost_of("int8", machine, small, large);
  EXPECT_NEAR(cost.step_seconds, 0.002, 1e-12);
  EXPECT_NEAR(cost.seconds_per_value, 5e-9, 1e-15);
  EXPECT_DOUBLE_EQ(cost.bytes_per_value, 1);
  EXPECT_DOUBLE_EQ(cost.piece_values, 5e5);
  // Of the exchange itself, which cuts shorter pieces where ranks share hosts.
  EXPECT_DOUBLE_EQ(cost.piece_values_by_host, double(kSegmentByHost));
  EXPECT_EQ(pieces_of(cost, 2e6, false), 4);
  EXPECT_EQ(pieces_of(cost, 8 * double(kSegmentByHost), true), 8);
  ProbeSample whole = large;
  whole.collectives = 4;
  EXPECT_DOUBLE_EQ(cost_of("int8", machine, small, whole).decode_share, 0.4);
}

TEST(PlanCost, NoiseNeverMakesACostNegative) {
  const ProbeSample small{.values = 1e6, .cpu_seconds = 0.009, .base_seconds = 0.001};
  const ProbeSample large{.values = 4e6, .cpu_seconds = 0.006, .base_seconds = 0.001};
  const HookCost cost = cost_of("int8", {}, small, large);
  EXPECT_EQ(cost.step_seconds, 0);
  EXPECT_NEAR(cost.seconds_per_value, 0.005 / 4e6, 1e-15);
  const ProbeSample idle{.values = 4e6, .cpu_seconds = 0.001, .base_seconds = 0.002};
  EXPECT_EQ(cost_of("fp16", {}, idle, idle).seconds_per_value, 0);
}

Candidate candidate(const std::string& spec, double tolerance, double ms,
                    double doubt = 0.1) {
  Candidate c{.spec = spec, .tolerance = tolerance};
  c.likely.step_seconds = ms;
  c.fast.step_seconds = ms * (1 - doubt);
  c.slow.step_seconds = ms * (1 + doubt);
  return c;
}

TEST(PlanAdvice, KeepsAllreduceUnlessTenPercentAreSaved) {
  const auto close =
      advise({candidate("allreduce", 1e-5, 100), candidate("fp16", 1e-3, 91)});
  EXPECT_EQ(close.choice, 0U);
  const auto enough =
      advise({candidate("allreduce", 1e-5, 100), candidate("fp16", 1e-3, 90)});
  EXPECT_EQ(enough.choice, 1U);
  EXPECT_NEAR(enough.gain, 0.1, 1e-12);
}

TEST(PlanAdvice, ACoarserHookMustSaveTenPercentMoreThanAMoreExactOne) {
  const std::vector<Candidate> all{candidate("allreduce", 1e-5, 100),
                                   candidate("powersgd", 1, 46),
                                   candidate("fp16", 1e-3, 50), candidate("noop", -1, 1)};
  EXPECT_EQ(advise(all).choice, 2U);
}

TEST(PlanAdvice, HooksThatTrainWorseAreAdvisedOnlyWhereThereIsNoPowerSgd) {
  const Candidate exact = candidate("allreduce", 1e-5, 100);
  const Candidate power = candidate("powersgd:rank=2,start=0", 1, 40);
  for (const char* spec :
       {"batched_powersgd:rank=2,start=0", "topk:ratio=0.01", "randomk"}) {
    SCOPED_TRACE(spec);
    const Candidate worse = candidate(spec, 1, 20);
    EXPECT_EQ(advise({exact, power, worse}).choice, 1U);
    EXPECT_EQ(advise({exact, worse, power}).choice, 2U);
    EXPECT_EQ(advise({exact, worse}).choice, 1U);
  }
}

TEST(PlanAdvice, IsAsSureAsTheRangesAreApart) {
  const auto sureness = [](double ms, double doubt) {
    return advise({candidate("allreduce", 1e-5, 100, doubt),
                   candidate("int8", 1e-2, ms, doubt)})
        .sureness;
  };
  EXPECT_EQ(sureness(30, 0.2), Sureness::sure);
  EXPECT_EQ(sureness(75, 0.2), Sureness::fairly_sure);
  EXPECT_EQ(sureness(88, 0.2), Sureness::not_sure);
  EXPECT_EQ(sureness(150, 0.1), Sureness::sure);
  EXPECT_EQ(sureness(100, 0.15), Sureness::not_sure);
}

TEST(PlanAdvice, DoubtsMoreWhatWasNotMeasured) {
  const Job pair{.compute_on_cpu = true};
  const Job cluster{.hosts = 4, .ranks_per_host = 8};
  EXPECT_LT(doubt_of(pair, int8(0)).share, doubt_of(cluster, int8(0)).share);
  EXPECT_GT(doubt_of(cluster, int8(0)).reasons.size(), 2U);
  // And what was measured beside other programs.
  HookCost busy = int8(0);
  busy.others_load = 0.25;
  EXPECT_NEAR(doubt_of(pair, busy).share, doubt_of(pair, int8(0)).share + 0.25, 1e-12);
  EXPECT_NE(doubt_of(pair, busy).reasons.back().find("other programs use 25 %"),
            std::string::npos);
}

TEST(PlanAdvice, FindsTheLinkBelowWhichCompressionPays) {
  const ShapeList shapes(8, {1024, 1024});
  const Job job{.compute_seconds = 0.05, .cores_per_rank = 4};
  const std::vector<HookCost> costs{allreduce(), int8(1e-9)};
  const double below = pays_below(job, {}, costs, shapes);
  EXPECT_GT(below, 100 * kMbit);
  EXPECT_LT(below, 100 * kGbit);
  const std::vector<HookCost> slow{allreduce(), int8(1e-3)};
  EXPECT_EQ(pays_below(job, {}, slow, shapes), 0);
}

TEST(HookChoice, EveryRowOfTheTableWhenNothingIsSaid) {
  const auto all = choose_hooks("");
  EXPECT_EQ(all.size(), hook_table().size());
  for (const std::string& spec : all) EXPECT_NO_THROW(make_hook(spec)) << spec;
}

TEST(HookChoice, AnOptionWithoutAValueBelongsToTheHookBeforeIt) {
  EXPECT_EQ(choose_hooks("int8:flat=1,small,fp16"),
            (std::vector<std::string>{"int8:flat=1,small", "fp16"}));
}

TEST(HookChoice, WhenAHookBeginsToCompress) {
  EXPECT_EQ(steps_before_compression("fp16+powersgd:rank=2"), 1000);
  EXPECT_EQ(steps_before_compression("powersgd:start=7,rank=2"), 7);
  EXPECT_EQ(steps_before_compression("int8"), 0);
  EXPECT_EQ(steps_before_compression("rules:a=powersgd(start=3);b=int8;*=powersgd"), 1000);
  EXPECT_EQ(steps_before_compression("fp16+rules:*=rules(a=powersgd:start=7;*=int8)"), 7);
  EXPECT_EQ(steps_before_compression("rules"), 0);
  EXPECT_EQ(steps_before_compression("auto:among=fp16/powersgd(rank=2,start=9)"), 9);
  EXPECT_EQ(steps_before_compression("auto:least=powersgd"), 0);
  EXPECT_EQ(from_the_first_step("powersgd:start=10,rank=2"), "powersgd:start=0,rank=2");
  EXPECT_EQ(from_the_first_step("fp16+powersgd"), "fp16+powersgd:start=0");
  EXPECT_EQ(from_the_first_step("int8"), "int8");
}

TEST(HookChoice, ARunThatIsOverBeforeItsHookCompressesIsTold) {
  EXPECT_EQ(why_it_never_compresses("powersgd:start=20", 20),
            "powersgd:start=20 averages exactly for its first 20 steps, and this run has "
            "20: it never compresses (start=2 would, after a tenth)");
  EXPECT_EQ(why_it_never_compresses("rules:*bias=int8;*=powersgd", 400),
            "rules:*bias=int8;*=powersgd: powersgd averages exactly for its first 1000 "
            "steps, and this run has 400: it never compresses (start=40 would, after a "
            "tenth)");
  for (const char* spec : {"powersgd:start=19", "int8", "auto"})
    EXPECT_EQ(why_it_never_compresses(spec, 20), "");
}

TEST(HookChoice, ToleranceOfAWrapperIsAddedToItsHooks) {
  EXPECT_NEAR(tolerance_of("fp16+int8"), 1e-3 + 1.5e-2, 1e-12);
  EXPECT_LT(tolerance_of("noop"), 0);
  EXPECT_EQ(base_name("fp16+powersgd:rank=2,start=0"), "powersgd");
}

TEST(HookChoice, RulesAreOneHookAndAsCoarseAsTheCoarsestOfThem) {
  EXPECT_EQ(choose_hooks("fp16,rules:a*=int8;*=powersgd:rank=2,start=3,small+int8(flat=1)"),
            (std::vector<std::string>{"fp16", "rules:a*=int8;*=powersgd:rank=2,start=3",
                                      "small+int8(flat=1)"}));
  EXPECT_EQ(base_name("node+rules:*=fp16+int8"), "rules");
  EXPECT_NEAR(tolerance_of("rules:a*=fp16;*=int8"), 1.5e-2, 1e-12);
  EXPECT_NEAR(tolerance_of("node+rules:*=small+fp16"), 1e-3, 1e-12);
  EXPECT_LT(tolerance_of("rules:a=noop;*=int8"), 0);
  EXPECT_EQ(choose_hooks("powersgd(rank=2)").front(), "powersgd:rank=2,start=0");
  EXPECT_TRUE(is_made_of_hooks("fp16+rules"));
  EXPECT_NEAR(tolerance_of("auto"), 1.5e-2, 1e-12);
  EXPECT_NEAR(tolerance_of("auto:least=fp16"), 1e-3, 1e-12);
  EXPECT_NEAR(tolerance_of("auto:among=fp16/powersgd(rank=2,start=0)"), 1, 1e-12);
}

}  // namespace
}  // namespace brigade::tool
