// Finds from spans the bucket and the rank for which a step waits.
#include "report/waiting.h"

#include <gtest/gtest.h>

#include "brigade/report.h"

namespace brigade::report {
namespace {

// Adds a rank's step that begins at `begin` ms: starts bucket 0 after `compute` ms less 2,
// bucket 1 after `compute`; each is under way for `reduce` ms.
void add_step(std::vector<Span>& spans, std::int64_t step, int rank, double begin,
              double compute, double reduce) {
  const auto span = [&](Span::Kind kind, std::int64_t bucket, double from, double to) {
    spans.push_back({.kind = kind,
                     .rank = rank,
                     .station = bucket < 0 ? -1 : 0,
                     .step = step,
                     .bucket = bucket,
                     .bytes = 100 * (bucket + 1),
                     .ready_us = from * 1e3,
                     .begin_us = from * 1e3,
                     .end_us = to * 1e3});
  };
  span(Span::Kind::forward, -1, begin, begin + 1);
  span(Span::Kind::collective, 0, begin + compute - 2, begin + compute - 2 + reduce);
  span(Span::Kind::collective, 1, begin + compute, begin + compute + reduce);
  span(Span::Kind::compute, 1, begin + compute, begin + compute + 0.5);
}

TEST(Waiting, OnlyWhatIsAfterTheLastHandOverIsExposed) {
  std::vector<Span> spans;
  for (int step = 0; step < 3; ++step) add_step(spans, step, 0, 100 * step, 10, 5);
  const auto buckets = waiting_by_bucket(spans);
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_DOUBLE_EQ(buckets[0].reduce_ms, 5);
  EXPECT_DOUBLE_EQ(buckets[0].exposed_ms, 3);  // two of five were hidden
  EXPECT_DOUBLE_EQ(buckets[1].exposed_ms, 5);
  EXPECT_EQ(buckets[0].bytes, 100);
  EXPECT_EQ(buckets[1].bytes, 200);  // computing sends nothing
}

TEST(Waiting, TheRankThatComputesLongestIsNamed) {
  std::vector<Span> spans;
  for (int step = 0; step < 3; ++step) {
    for (const int rank : {0, 1, 3}) add_step(spans, step, rank, 100 * step, 10, 10);
    add_step(spans, step, 2, 100 * step, 18, 2);
  }
  const auto ranks = waiting_by_rank(spans);
  ASSERT_EQ(ranks.size(), 4U);
  for (const RankWaiting& one : ranks) EXPECT_EQ(one.straggles, one.rank == 2) << one.rank;
  EXPECT_DOUBLE_EQ(ranks[2].compute_ms, 18);
  EXPECT_DOUBLE_EQ(ranks[2].wait_ms, 2);
  EXPECT_DOUBLE_EQ(ranks[0].wait_ms, 10);
}

TEST(Waiting, OfTwoRanksTheSlowerOneIsNamed) {
  std::vector<Span> spans;
  add_step(spans, 0, 0, 0, 20, 1);
  add_step(spans, 0, 1, 0, 10, 11);
  const auto ranks = waiting_by_rank(spans);
  EXPECT_TRUE(ranks.at(0).straggles);
  EXPECT_FALSE(ranks.at(1).straggles);
}

TEST(Waiting, IsInTheReportOfOneTraining) {
  RunRecord record{.title = "one"};
  record.series.push_back({.hook = "int8"});
  add_step(record.series[0].spans, 0, 0, 0, 10, 1);
  EXPECT_NE(report_html(record).find("Whom the others wait for"), std::string::npos);
  record.series.push_back(record.series[0]);
  EXPECT_EQ(report_html(record).find("Whom the others wait for"), std::string::npos);
}

TEST(Waiting, WithoutSpansThereAreNoTables) {
  EXPECT_TRUE(waiting_tables({}).empty());
  std::vector<Span> half{{.kind = Span::Kind::forward}};  // no bucket
  EXPECT_TRUE(waiting_tables(half).empty());
  add_step(half, 1, 0, 0, 10, 1);
  ASSERT_EQ(waiting_tables(half).size(), 2U);
  EXPECT_EQ(waiting_tables(half)[0].rows.size(), 2U);
}

}  // namespace
}  // namespace brigade::report
