#include "demo/verdict.h"

#include <algorithm>
#include <optional>

#include "common/hook_choice.h"
#include "common/options.h"
#include "common/pays_below.h"

namespace brigade::tool {
namespace {

// Two times closer than this count as equal: steps differ that much from run to run.
constexpr double kNoise = 0.05;
constexpr double kSlow = 100e6;  // bits a second
// A hook that loses more accuracy than this is no rival, however quick it is.
constexpr double kFewPoints = 0.02;

std::string milliseconds(const Series& series) { return ms_text(series.step_ms) + " ms"; }

// A run that ends before the hook compresses says nothing about it.
bool compressed(const Series& series) {
  return why_it_never_compresses(series.hook, std::ssize(series.points)).empty();
}

// Hooks that average, except all-reduce, as trained over that link.
std::vector<const Series*> rivals(std::span<const Series> all, const std::string& link) {
  std::vector<const Series*> found;
  for (const Series& series : all) {
    if (series.takes_mean && series.link == link && series.hook != "allreduce" &&
        compressed(series))
      found.push_back(&series);
  }
  return found;
}

bool learns_less(const Series& series, const Series& base) {
  return !(series.test_accuracy >= base.test_accuracy - kFewPoints);
}

std::string who_learns_less(const std::vector<const Series*>& some, const Series& base) {
  std::string text;
  for (const Series* series : some) {
    if (!learns_less(*series, base)) continue;
    text += (text.empty() ? "" : ", ") + series->hook + " (" +
            decimals(series->test_accuracy * 100, 1) + "%)";
  }
  if (text.empty()) return "";
  return "Left aside, because it learned less than all-reduce's " +
         decimals(base.test_accuracy * 100, 1) + "%: " + text + ".";
}

const Series* all_reduce(std::span<const Series> all, const std::string& link) {
  const auto found = std::ranges::find_if(all, [&](const Series& series) {
    return series.link == link && series.hook == "allreduce";
  });
  return found == all.end() ? nullptr : &*found;
}

const Series& quickest(const std::vector<const Series*>& some) {
  return **std::ranges::min_element(some, {}, &Series::step_ms);
}

std::string on_loopback(const Series& best, const Series& base) {
  const double ratio = best.step_ms / base.step_ms;
  if (ratio < 1 - kNoise) {
    return "Even over loopback " + best.hook +
           " is quicker than all-reduce: " + milliseconds(best) + " against " +
           milliseconds(base) + " a step.";
  }
  if (ratio <= 1 + kNoise) {
    return "Over loopback compression does not pay: the quickest, " + best.hook +
           ", takes about as long as all-reduce, " + milliseconds(best) + " and " +
           milliseconds(base) + " a step.";
  }
  return "Over loopback compression does not pay: the quickest, " + best.hook + ", takes " +
         milliseconds(best) + " a step, all-reduce " + milliseconds(base) + ".";
}

StepCost cost_of(const Series& series) {
  return {.seconds = series.step_ms / 1000, .bytes = series.bytes_per_step};
}

// Names the hook that would be the quickest on a slow link.
std::string crossing(const std::vector<const Series*>& some, const Series& base) {
  const auto on_slow_link = [](const Series* series) {
    return series->step_ms / 1000 + 8 * series->bytes_per_step / kSlow;
  };
  const Series& best = **std::ranges::min_element(some, {}, on_slow_link);
  const std::optional<double> below = pays_below(cost_of(best), cost_of(base));
  if (!below) return "";
  if (best.step_ms <= base.step_ms * (1 + kNoise)) {
    return "By these times and bytes " + best.hook +
           " would win on any link, the more the slower it is.";
  }
  return "By these times and bytes " + best.hook +
         " would win on links slower than about " + rough_rate_text(*below) + ".";
}

bool has_hook_of(const std::vector<const Series*>& some, const Series& series) {
  return std::ranges::any_of(some, [&](const Series* one) {
    return base_name(one->hook) == base_name(series.hook);
  });
}

// Leaves out hooks of `trained` that are not among `some`. Others may compress over the
// link only, where they start sooner.
std::string over_link(std::span<const Series> all,
                      const std::vector<const Series*>& trained,
                      const std::vector<const Series*>& some, const std::string& link) {
  const Series* base = all_reduce(all, link);
  std::vector<const Series*> there = rivals(all, link);
  std::erase_if(there, [&](const Series* series) {
    return has_hook_of(trained, *series) && !has_hook_of(some, *series);
  });
  if (!base || there.empty()) return "";
  const Series& best = quickest(there);
  const std::string times = best.hook + " took " + milliseconds(best) +
                            " a step and all-reduce " + milliseconds(*base);
  if (best.step_ms > base->step_ms * (1 - kNoise))
    return "Over a real link of " + link + " nothing was won: " + times + ".";
  return "Over a real link of " + link + " " + times + ": " +
         readable(base->step_ms / best.step_ms) + " times as quick.";
}

}  // namespace

std::vector<std::string> verdict(std::span<const Series> all) {
  if (all.empty()) return {};
  const std::string& here = all[0].link;
  const Series* base = all_reduce(all, here);
  if (!base) return {};
  const std::vector<const Series*> trained = rivals(all, here);
  std::vector<const Series*> some = trained;
  const std::string aside = who_learns_less(some, *base);
  std::erase_if(some, [&](const Series* series) { return learns_less(*series, *base); });
  std::vector<std::string> sentences;
  if (!some.empty() && here.empty())
    sentences = {on_loopback(quickest(some), *base), crossing(some, *base)};
  for (const Series& series : all) {
    if (!series.link.empty() && series.hook == "allreduce")
      sentences.push_back(over_link(all, trained, some, series.link));
  }
  sentences.push_back(aside);
  std::erase(sentences, "");
  return sentences;
}

}  // namespace brigade::tool
