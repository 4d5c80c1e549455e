#include "hooks/auto/tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace brigade {
namespace {

constexpr double kLeastSaving = 0.1;  // as a share of the time of a more exact hook
constexpr double kOther = 1.5;        // a greater ratio of times means another network
constexpr double kQuicker = 4.0 / 3;
constexpr double kNoise = 1e-3;  // seconds: smaller differences do not mean another network
constexpr double kChance = 0.5e-3;  // seconds: smaller savings may be chance
constexpr int kInARow = 3;
constexpr int kMostPatience = 64;
constexpr const char* kOneHost = "all ranks are on one host, and nothing crosses a network";

std::string ms(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.01 ? "%.2f ms" : "%.0f ms", seconds * 1e3);
  return text;
}

bool saves(double seconds, double than) {
  return seconds <= (1 - kLeastSaving) * than && than - seconds > kChance;
}

bool differ(double a, double b) {
  return std::abs(a - b) > kNoise && std::max(a, b) > kOther * std::min(a, b);
}

// A faster link may not need a coarse hook any more. That alone cannot make its steps much
// faster, because encoding takes as long as before.
bool quicker(double now, double before) {
  return before - now > kNoise && before > kQuicker * now;
}

class StepTuner : public Tuner {
 public:
  explicit StepTuner(std::vector<std::string> names) : names_(std::move(names)) {}

  Decision after(size_t hook, const WindowTimes& seen) override {
    if (phase_ == Phase::settled) return watch(hook, seen);
    if (phase_ == Phase::comparing) return compare(hook, seen);
    if (phase_ == Phase::trying) {
      windows_[hook] = seen;
      return try_next(hook + 1);
    }
    // The rank that decided so far is gone, so what it measured must be measured again.
    if (hook != 0) return {0, false, "another rank decides now; looking again"};
    windows_ = {{0, seen}};
    return seen.on_one_host ? settle(0, kOneHost) : try_next(1);
  }

  void resume(size_t hook) override {
    phase_ = Phase::settled;
    last_choice_ = hook;
    known_ = false;
    strange_ = 0;
  }

 private:
  enum class Phase { measuring, trying, comparing, settled };

  double step(size_t hook) const { return windows_.at(hook).step; }

  // Starts from the most exact hook, and moves to a coarser one only if that pays.
  size_t best() const {
    size_t best = 0;
    for (const auto& [hook, seen] : windows_) {
      if (saves(seen.step, step(best))) best = hook;
    }
    return best;
  }

  Decision try_next(size_t next) {
    const size_t found = best();
    const WindowTimes& seen = windows_.at(found);
    if (next == names_.size() || !saves(seen.step - seen.exposed, seen.step))
      return compare_best();
    phase_ = Phase::trying;
    return {next, false, "trying " + names_[next] + ": " + waiting_for(found)};
  }

  Decision compare_best() {
    found_ = best();
    if (found_ == 0) return settle(0, nothing_saved());
    phase_ = Phase::comparing;
    return {0, false, names_[found_] + " took " + instead() + "; both once more"};
  }

  Decision compare(size_t hook, const WindowTimes& seen) {
    windows_[hook] = seen;
    if (hook != found_) return {found_, false, ""};
    if (saves(step(found_), step(0))) return settle(found_, instead());
    return settle(0, names_[found_] + " did not save " + asked_for() +
                         " twice: the second time it took " + instead());
  }

  // Gives "10 %", or more where that could be chance.
  std::string asked_for() const {
    const double share = std::max(kLeastSaving, kChance / step(0));
    return std::to_string(std::lround(100 * share)) + " %";
  }

  std::string instead() const {
    return ms(step(found_)) + " a step instead of " + ms(step(0)) + " with " + names_[0];
  }

  // Gives "80 ms of 1000 ms a step wait for allreduce".
  std::string waiting_for(size_t hook) const {
    return ms(windows_.at(hook).exposed) + " of " + ms(step(hook)) + " a step wait for " +
           names_[hook];
  }

  std::string nothing_saved() const {
    if (windows_.size() > 1)
      return "nothing that was tried saved " + asked_for() + " of " + ms(step(0)) +
             " a step";
    return "only " + waiting_for(0) + ", and another hook must save " + asked_for();
  }

  Decision settle(size_t choice, const std::string& why) {
    phase_ = Phase::settled;
    reference_ = windows_.at(choice);
    known_ = true;
    strange_ = 0;
    patience_ = looked_ && choice == last_choice_ ? std::min(2 * patience_, kMostPatience)
                                                  : kInARow;
    last_choice_ = choice;
    return {choice, true, "chose " + names_[choice] + ": " + why};
  }

  Decision watch(size_t hook, const WindowTimes& seen) {
    if (!known_) {
      reference_ = seen;
      known_ = true;
    }
    const bool other =
        differ(seen.step, reference_.step) && differ(seen.busy, reference_.busy);
    const bool strange = other || (hook > 0 && quicker(seen.busy, reference_.busy));
    strange_ = strange ? strange_ + 1 : 0;
    if (strange_ < patience_) return {hook, true, ""};
    looked_ = true;
    phase_ = Phase::measuring;
    strange_ = 0;
    if (hook == 0) {
      Decision decision = after(0, seen);
      decision.line = changed(seen) + "; " + decision.line;
      return decision;
    }
    return {0, false, changed(seen) + "; looking again"};
  }

  std::string changed(const WindowTimes& seen) const {
    return "a step takes " + ms(seen.step) + " instead of " + ms(reference_.step) + ", " +
           ms(seen.busy) + " of it busy sending instead of " + ms(reference_.busy);
  }

  const std::vector<std::string> names_;
  Phase phase_ = Phase::measuring;
  std::map<size_t, WindowTimes> windows_;  // each hook's last, since the search began
  size_t found_ = 0;                       // the best hook after one window each
  // While settled: the reference that changes are measured against.
  bool known_ = false;
  WindowTimes reference_;
  int strange_ = 0;  // windows in a row
  int patience_ = kInARow;
  bool looked_ = false;
  size_t last_choice_ = 0;
};

}  // namespace

std::string text_by_bucket(const WindowTimes& seen) {
  std::string text;
  for (size_t bucket = 0; bucket < seen.exposed_by_bucket.size(); ++bucket) {
    const double seconds = seen.exposed_by_bucket[bucket];
    if (seconds <= 0 || seconds < 0.01 * seen.exposed) continue;
    text += (text.empty() ? "" : ", ") + ("bucket " + std::to_string(bucket)) + ": " +
            ms(seconds);
  }
  return text;
}

std::unique_ptr<Tuner> make_tuner(std::vector<std::string> names) {
  return std::make_unique<StepTuner>(std::move(names));
}

}  // namespace brigade
