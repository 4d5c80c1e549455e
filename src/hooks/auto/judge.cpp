#include "hooks/auto/judge.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace brigade {
namespace {

constexpr double kWorthwhile = 0.9;  // of the time of what it replaces, at most
constexpr double kPromising = 0.8;   // a prediction may be off by as much
constexpr double kOther = 1.5;       // times that differ by more are not the same network's
constexpr double kQuicker = 4.0 / 3;
constexpr double kNoise = 1e-3;  // seconds: smaller differences do not count
constexpr int kInARow = 3;
constexpr int kMostPatience = 64;

std::string ms(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 0.01 ? "%.2f ms" : "%.0f ms", seconds * 1e3);
  return text;
}

bool differ(double a, double b) {
  return std::abs(a - b) > kNoise && std::max(a, b) > kOther * std::min(a, b);
}

// A quicker link may not need a coarse hook any more, though that alone can't make its
// steps much quicker: the coding stays.
bool quicker(double now, double before) {
  return before - now > kNoise && before > kQuicker * now;
}

class StepJudge : public Judge {
 public:
  StepJudge(std::vector<std::string> names, Predict predict)
      : names_(std::move(names)), predict_(std::move(predict)) {}

  Verdict after(size_t hook, const WindowTimes& seen) override {
    if (phase_ == Phase::settled) return watch(hook, seen);
    if (phase_ == Phase::measuring) {
      exact_ = seen;
      predicted_ = predict_(seen);
      measured_ = {{0, seen.step}};
      windows_ = {{0, seen}};
    } else {
      measured_[hook] = seen.step;
      windows_[hook] = seen;
    }
    return try_next();
  }

  void resume(size_t hook) override {
    phase_ = Phase::settled;
    last_choice_ = hook;
    known_ = false;
    strange_ = 0;
  }

 private:
  enum class Phase { measuring, trying, settled };

  // From the most exact on, moving to a coarser one only if it pays.
  size_t best() const {
    size_t best = 0;
    for (const auto& [hook, seconds] : measured_) {
      if (seconds <= kWorthwhile * measured_.at(best)) best = hook;
    }
    return best;
  }

  // The quickest by prediction that has not been tried and may still be the best.
  size_t promising() const {
    const double found = measured_.at(best());
    size_t next = 0;
    for (size_t hook = 1; hook < names_.size(); ++hook) {
      if (measured_.contains(hook) || predicted_[hook] > kWorthwhile * exact_.step)
        continue;
      if (measured_.size() > 1 && kPromising * predicted_[hook] > found) continue;
      if (next == 0 || predicted_[hook] < kWorthwhile * predicted_[next]) next = hook;
    }
    return next;
  }

  Verdict try_next() {
    const size_t next = promising();
    if (next == 0) return settle();
    phase_ = Phase::trying;
    return {next, false,
            "trying " + names_[next] + ": " + ms(exact_.exposed) + " of " +
                ms(exact_.step) + " a step wait for " + names_[0] + ", predicted are " +
                ms(predicted_[next]) + " a step"};
  }

  Verdict settle() {
    phase_ = Phase::settled;
    const size_t choice = best();
    reference_ = windows_.at(choice);
    known_ = true;
    strange_ = 0;
    patience_ = looked_ && choice == last_choice_ ? std::min(2 * patience_, kMostPatience)
                                                  : kInARow;
    last_choice_ = choice;
    std::string line = "chose " + names_[choice] + ": ";
    if (choice > 0) {
      line += ms(measured_.at(choice)) + " a step instead of " + ms(exact_.step) +
              " with " + names_[0];
    } else if (measured_.size() > 1) {
      line += "nothing that was tried saved 10 % of " + ms(exact_.step) + " a step";
    } else {
      line += "nothing should save 10 % of " + ms(exact_.step) + " a step, of which " +
              ms(exact_.exposed) + " wait for it";
    }
    return {choice, true, line};
  }

  Verdict watch(size_t hook, const WindowTimes& seen) {
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
      Verdict verdict = after(0, seen);
      verdict.line = changed(seen) + "; " + verdict.line;
      return verdict;
    }
    return {0, false, changed(seen) + "; looking again"};
  }

  std::string changed(const WindowTimes& seen) const {
    return "a step takes " + ms(seen.step) + " instead of " + ms(reference_.step) + ", " +
           ms(seen.busy) + " of it busy sending instead of " + ms(reference_.busy);
  }

  const std::vector<std::string> names_;
  const Predict predict_;
  Phase phase_ = Phase::measuring;
  WindowTimes exact_;
  std::vector<double> predicted_;
  std::map<size_t, double> measured_;  // seconds a step, by hook, since it last looked
  std::map<size_t, WindowTimes> windows_;
  // While settled: what it watches for changes.
  bool known_ = false;
  WindowTimes reference_;
  int strange_ = 0;  // windows in a row
  int patience_ = kInARow;
  bool looked_ = false;
  size_t last_choice_ = 0;
};

}  // namespace

std::unique_ptr<Judge> make_judge(std::vector<std::string> names, Predict predict) {
  return std::make_unique<StepJudge>(std::move(names), std::move(predict));
}

}  // namespace brigade
