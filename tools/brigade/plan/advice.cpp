#include "plan/advice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "common/hook_choice.h"
#include "common/options/number_text.h"

namespace brigade::tool {
namespace {

// What validation found on links and loopback, with two hosts of a rank each.
constexpr double kModelDoubt = 0.15;

Prediction with_factor(Job job, Machine machine, HookCost cost,
                       const std::vector<BucketLoad>& buckets, double factor) {
  job.link_bits /= factor;
  machine.latency *= factor;
  machine.transport_seconds_per_byte *= factor;
  cost.step_seconds *= factor;
  cost.seconds_per_value *= factor;
  return predict(job, machine, cost, buckets);
}

Sureness sureness_of(const Candidate& baseline, const Candidate& chosen,
                     const std::vector<Candidate>& all) {
  if (&chosen != &baseline) {
    const double slow = chosen.slow.step_seconds;
    if (slow <= (1 - kWorthwhile) * baseline.fast.step_seconds) return Sureness::sure;
    return slow <= baseline.likely.step_seconds ? Sureness::fairly_sure
                                                : Sureness::not_sure;
  }
  // Nothing paid; might something, at the ends of the doubt?
  Sureness sureness = Sureness::sure;
  for (const Candidate& other : all) {
    if (other.tolerance < 0 || &other == &baseline) continue;
    const double fast = other.fast.step_seconds;
    if (fast > (1 - kWorthwhile) * baseline.slow.step_seconds) continue;
    sureness = std::max(sureness, fast > (1 - kWorthwhile) * baseline.likely.step_seconds
                                      ? Sureness::fairly_sure
                                      : Sureness::not_sure);
  }
  return sureness;
}

// Batched PowerSGD mixes layers in one matrix, and hooks that send a few of the values
// need much longer trainings: all of them train worse than PowerSGD does (docs/study.md).
// Which is quicker by a hair, in this measurement, must not decide.
bool outdone(const Candidate& candidate, const std::vector<Candidate>& all) {
  constexpr std::array<std::string_view, 3> kWorse{"batched_powersgd", "topk", "randomk"};
  return std::ranges::find(kWorse, base_name(candidate.spec)) != kWorse.end() &&
         std::ranges::any_of(all, [](const Candidate& other) {
           return base_name(other.spec) == "powersgd";
         });
}

}  // namespace

std::string_view text_of(Sureness sureness) {
  switch (sureness) {
    case Sureness::sure:
      return "sure";
    case Sureness::fairly_sure:
      return "fairly sure";
    case Sureness::not_sure:
      return "not sure";
  }
  return "";
}

Advice advise(const std::vector<Candidate>& candidates) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return candidates[i].tolerance; });
  size_t choice = 0;
  for (const size_t index : order) {
    const Candidate& candidate = candidates[index];
    if (candidate.tolerance < 0 || index == 0 || outdone(candidate, candidates)) continue;
    if (candidate.likely.step_seconds <=
        (1 - kWorthwhile) * candidates[choice].likely.step_seconds) {
      choice = index;
    }
  }
  const Candidate& baseline = candidates[0];
  Advice advice{.choice = choice};
  if (baseline.likely.step_seconds > 0) {
    advice.gain = 1 - candidates[choice].likely.step_seconds / baseline.likely.step_seconds;
  }
  advice.sureness = sureness_of(baseline, candidates[choice], candidates);
  return advice;
}

Doubt doubt_of(const Job& job, const HookCost& cost) {
  Doubt doubt{kModelDoubt, {"the model itself: 15 % was seen on shaped links"}};
  const auto add = [&](double share, std::string why) {
    doubt.share += share;
    doubt.reasons.push_back(std::move(why));
  };
  if (job.ranks() > 2) add(0.10, "more than two ranks: measured with two only");
  if (job.ranks_per_host > 1)
    add(0.10, "ranks that share a host's link: assumed to share it evenly");
  if (!job.compute_on_cpu && !job.hooks_on_gpu) {
    add(0.15,
        "gradients on GPUs: hooks were measured on this machine's CPU (--device cuda on "
        "one with a GPU knows better)");
  }
  if (cost.spread > 0.1)
    add(std::min(0.3, cost.spread), "this machine is busy: measurements vary");
  if (cost.others_load > 0.1) {
    add(std::min(0.3, cost.others_load),
        "other programs use " + decimals(100 * cost.others_load, 0) +
            " % of this machine: predictions are of one that has only this to do");
  }
  return doubt;
}

Candidate candidate_of(const Job& job, const Machine& machine, const HookCost& cost,
                       const ShapeList& shapes) {
  const auto buckets = buckets_of(shapes, cost, approximation_rank(cost.spec));
  const double share = std::min(0.9, doubt_of(job, cost).share);
  return {.spec = cost.spec,
          .tolerance = cost.tolerance,
          .likely = predict(job, machine, cost, buckets),
          .fast = with_factor(job, machine, cost, buckets, 1 - share),
          .slow = with_factor(job, machine, cost, buckets, 1 + share)};
}

double pays_below(const Job& job, const Machine& machine,
                  const std::vector<HookCost>& costs, const ShapeList& shapes) {
  const auto pays = [&](double bits) {
    Job other = job;
    other.link_bits = bits;
    std::vector<Candidate> candidates;
    for (const HookCost& cost : costs) {
      const auto buckets = buckets_of(shapes, cost, approximation_rank(cost.spec));
      candidates.push_back({.spec = cost.spec,
                            .tolerance = cost.tolerance,
                            .likely = predict(other, machine, cost, buckets)});
    }
    return advise(candidates).choice != 0;
  };
  double low = 1e6, high = 400e9;
  if (job.hosts < 2 || !pays(low)) return 0;
  if (pays(high)) return high;
  for (int halving = 0; halving < 12; ++halving) {
    const double middle = std::sqrt(low * high);
    (pays(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace brigade::tool
