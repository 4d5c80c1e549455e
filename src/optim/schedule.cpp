#include <torch/optim/optimizer.h>

#include <cmath>
#include <numbers>
#include <string>

#include "brigade/error.h"
#include "brigade/optim.h"

namespace brigade::optim {
namespace {

void check_rate(const char* field, double lr) {
  if (std::isfinite(lr) && lr >= 0) return;
  throw ConfigError(std::string("schedule: ") + field + " is " + std::to_string(lr) +
                    ", but must be a learning rate of 0 or more");
}

void check_steps(const char* field, int64_t steps) {
  if (steps >= 1) return;
  throw ConfigError(std::string("schedule: ") + field + " is " + std::to_string(steps) +
                    ", but must be 1 step or more");
}

void check_positive(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return;
  throw ConfigError(std::string("schedule: ") + field + " is " + std::to_string(value) +
                    ", but must be more than 0");
}

// Goes from `first` at 0 to `last` at 1.
double along_cosine(double first, double last, double part) {
  return last + (first - last) / 2 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

Schedule::Schedule(std::function<double(int64_t step)> rate) : rate_(std::move(rate)) {
  if (!rate_) throw ConfigError("schedule: there is no function of the step");
}

double Schedule::operator()(int64_t step) const {
  if (step < 0)
    throw ConfigError("schedule: step " + std::to_string(step) + ": expected 0 or more");
  return rate_(step);
}

void Schedule::apply(torch::optim::Optimizer& optimizer, int64_t step) const {
  const double lr = (*this)(step);
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

Schedule constant(double lr) {
  check_rate("lr", lr);
  return Schedule([lr](int64_t) { return lr; });
}

Schedule warm_up(int64_t steps, Schedule then) {
  check_steps("warm_up's steps", steps);
  return Schedule([steps, then = std::move(then)](int64_t step) {
    if (step >= steps) return then(step - steps);
    return then(0) * static_cast<double>(step + 1) / static_cast<double>(steps + 1);
  });
}

Schedule cosine(double lr, int64_t steps, double final_lr) {
  check_rate("lr", lr);
  check_rate("final_lr", final_lr);
  check_steps("cosine's steps", steps);
  return Schedule([=](int64_t step) {
    if (step >= steps) return final_lr;
    return along_cosine(lr, final_lr,
                        static_cast<double>(step) / static_cast<double>(steps));
  });
}

Schedule step_decay(double lr, int64_t every, double gamma) {
  check_rate("lr", lr);
  check_steps("every", every);
  check_positive("gamma", gamma);
  return Schedule([=](int64_t step) {
    const int64_t decays = step / every;
    return lr * std::pow(gamma, static_cast<double>(decays));
  });
}

Schedule one_cycle(double max_lr, int64_t steps, const OneCycleOptions& options) {
  check_rate("max_lr", max_lr);
  check_steps("one_cycle's steps", steps);
  check_positive("start_divisor", options.start_divisor);
  check_positive("final_divisor", options.final_divisor);
  if (!(options.rising >= 0 && options.rising <= 1)) {
    throw ConfigError("schedule: rising is " + std::to_string(options.rising) +
                      ", but must be a part of the steps, from 0 to 1");
  }
  const double first = max_lr / options.start_divisor;
  const double last = first / options.final_divisor;
  const double end = static_cast<double>(steps - 1);
  const double top = options.rising * static_cast<double>(steps) - 1;
  return Schedule([=](int64_t step) {
    const auto at = static_cast<double>(step);
    if (at >= end) return last;
    if (at < top) return along_cosine(first, max_lr, at / top);
    return along_cosine(max_lr, last, (at - top) / (end - top));
  });
}

}  // namespace brigade::optim
