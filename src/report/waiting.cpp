#include "report/waiting.h"

#include <algorithm>
#include <map>

#include "base/number_text.h"

namespace brigade::report {
namespace {

// One step of one rank.
struct StepOfRank {
  double begin_us = 0;                        // of its forward pass
  double handed_over_us = 0;                  // of its last bucket
  std::map<std::int64_t, Span> by_bucket;     // from hand-over (ready_us) to end
  std::map<std::int64_t, std::int64_t> sent;  // bytes by bucket
  bool has_begin = false;
  bool whole() const { return has_begin && !by_bucket.empty(); }
  double reduced_us() const {
    double end = 0;
    for (const auto& [bucket, span] : by_bucket) end = std::max(end, span.end_us);
    return end;
  }
};

using Steps = std::map<std::pair<std::int64_t, int>, StepOfRank>;

Steps steps_of(std::span<const Span> spans) {
  Steps steps;
  for (const Span& span : spans) {
    StepOfRank& step = steps[{span.step, span.rank}];
    if (span.kind == Span::Kind::forward) {
      step.begin_us = span.begin_us;
      step.has_begin = true;
    }
    if (span.bucket < 0) continue;
    auto [found, fresh] = step.by_bucket.try_emplace(span.bucket, span);
    found->second.end_us = std::max(found->second.end_us, span.end_us);
    if (span.kind == Span::Kind::collective) step.sent[span.bucket] += span.bytes;
    step.handed_over_us = std::max(step.handed_over_us, span.ready_us);
  }
  std::erase_if(steps, [](const auto& step) { return !step.second.whole(); });
  return steps;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::vector<BucketWaiting> waiting_by_bucket(std::span<const Span> spans) {
  struct Seen {
    std::vector<double> reduce_ms, exposed_ms, bytes;
  };
  std::map<std::int64_t, Seen> seen;
  for (const auto& [place, step] : steps_of(spans)) {
    for (const auto& [bucket, span] : step.by_bucket) {
      seen[bucket].reduce_ms.push_back((span.end_us - span.ready_us) / 1e3);
      seen[bucket].exposed_ms.push_back(std::max(0.0, span.end_us - step.handed_over_us) /
                                        1e3);
      const auto sent = step.sent.find(bucket);
      seen[bucket].bytes.push_back(
          sent == step.sent.end() ? 0 : static_cast<double>(sent->second));
    }
  }
  std::vector<BucketWaiting> all;
  for (const auto& [bucket, of] : seen) {
    all.push_back({.bucket = bucket,
                   .bytes = static_cast<std::int64_t>(median_of(of.bytes)),
                   .reduce_ms = median_of(of.reduce_ms),
                   .exposed_ms = median_of(of.exposed_ms)});
  }
  return all;
}

std::vector<RankWaiting> waiting_by_rank(std::span<const Span> spans) {
  struct Seen {
    std::vector<double> compute_ms, wait_ms;
  };
  std::map<int, Seen> seen;
  for (const auto& [place, step] : steps_of(spans)) {
    Seen& of = seen[place.second];
    of.compute_ms.push_back((step.handed_over_us - step.begin_us) / 1e3);
    of.wait_ms.push_back(std::max(0.0, step.reduced_us() - step.handed_over_us) / 1e3);
  }
  std::vector<RankWaiting> all;
  for (const auto& [rank, of] : seen) {
    all.push_back({.rank = rank,
                   .compute_ms = median_of(of.compute_ms),
                   .wait_ms = median_of(of.wait_ms)});
  }
  // For two ranks the quicker one is the reference.
  std::vector<double> computing;
  for (const RankWaiting& one : all) computing.push_back(one.compute_ms);
  std::ranges::sort(computing);
  for (RankWaiting& one : all)
    one.straggles = one.compute_ms > kStraggles * computing[(computing.size() - 1) / 2];
  return all;
}

std::vector<Table> waiting_tables(std::span<const Span> spans) {
  Table buckets{.title = "What a step waits for, by bucket",
                .note =
                    "Medians over the recorded steps and ranks. Exposed: after the "
                    "last bucket was handed over, when nothing is left to compute.",
                .columns = {"bucket", "sent", "reduced in ms", "exposed ms"}};
  for (const BucketWaiting& one : waiting_by_bucket(spans)) {
    buckets.rows.push_back({std::to_string(one.bucket),
                            base::bytes_text(static_cast<double>(one.bytes)),
                            base::ms_text(one.reduce_ms), base::ms_text(one.exposed_ms)});
  }
  Table ranks{.title = "Whom the others wait for, by rank",
              .note =
                  "Medians over the recorded steps. A rank that computes for more than "
                  "1.25 times the median is named a straggler.",
              .columns = {"rank", "computes ms", "waits ms", "straggler"}};
  for (const RankWaiting& one : waiting_by_rank(spans)) {
    ranks.rows.push_back({std::to_string(one.rank), base::ms_text(one.compute_ms),
                          base::ms_text(one.wait_ms), one.straggles ? "yes" : ""});
  }
  if (buckets.rows.empty()) return {};
  return {buckets, ranks};
}

}  // namespace brigade::report
