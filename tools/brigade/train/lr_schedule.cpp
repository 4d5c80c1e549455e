#include "train/lr_schedule.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/option_spec.h"
#include "brigade/error.h"

namespace brigade::tool {
namespace {

using optim::Schedule;

void require(bool holds, const std::string& what) {
  if (!holds) throw ConfigError("--schedule: " + what);
}

// The number of all steps, and of those at the beginning that warm up.
struct ScheduleLengths {
  std::int64_t steps = 0;
  std::int64_t warmup = 0;
};

// Each of these makes the part after the warm-up.

Schedule constant_factor(const base::OptionSpec&, ScheduleLengths) {
  return optim::constant(1);
}

Schedule cosine_factor(const base::OptionSpec& given, ScheduleLengths lengths) {
  const double floor = given.number("floor", 0);
  require(floor >= 0 && floor <= 1,
          "floor is " + std::to_string(floor) + "; it must be from 0 to 1");
  return optim::cosine(1, std::max<std::int64_t>(1, lengths.steps - lengths.warmup), floor);
}

Schedule step_factor(const base::OptionSpec& given, ScheduleLengths lengths) {
  const std::int64_t third = std::max<std::int64_t>(1, lengths.steps / 3);
  const std::int64_t every = given.integer("every", third);
  require(every >= 1, "every is " + std::to_string(every) + "; it must be 1 or more");
  const double factor = given.number("factor", 0.1);
  require(factor > 0 && factor <= 1,
          "factor is " + std::to_string(factor) + "; it must be above 0 and at most 1");
  return optim::step_decay(1, every, factor);
}

Schedule one_cycle_factor(const base::OptionSpec& given, ScheduleLengths lengths) {
  optim::OneCycleOptions options;
  options.rising = given.number("rising", options.rising);
  options.start_divisor = given.number("start_divisor", options.start_divisor);
  options.final_divisor = given.number("final_divisor", options.final_divisor);
  return optim::one_cycle(1, std::max<std::int64_t>(1, lengths.steps), options);
}

struct ScheduleKind {
  std::string_view name;
  std::vector<std::string_view> options;
  Schedule (*make)(const base::OptionSpec& given, ScheduleLengths lengths);
};

const std::array<ScheduleKind, 4> kScheduleKinds{
    {{"constant", {"warmup"}, constant_factor},
     {"cosine", {"warmup", "floor"}, cosine_factor},
     {"step", {"warmup", "every", "factor"}, step_factor},
     {"one_cycle", {"rising", "start_divisor", "final_divisor"}, one_cycle_factor}}};

Schedule made_schedule(std::string_view spec, std::int64_t steps) {
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const auto kind = std::ranges::find(kScheduleKinds, name, &ScheduleKind::name);
  if (kind == kScheduleKinds.end()) {
    std::vector<std::string_view> names;
    for (const ScheduleKind& each : kScheduleKinds) names.push_back(each.name);
    require(false, "no schedule named '" + std::string(name) + "'" +
                       base::suggestion(name, names));
  }
  const base::OptionSpec given(
      name, colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1),
      kind->options, "schedule");
  // A cycle rises by itself, so it has no such option.
  const bool may_warm_up = std::ranges::count(kind->options, "warmup") > 0;
  const std::int64_t warmup = may_warm_up ? given.integer("warmup", 0) : 0;
  require(warmup >= 0, "warmup is " + std::to_string(warmup) + "; it must be 0 or more");
  Schedule then = kind->make(given, {steps, warmup});
  return warmup > 0 ? optim::warm_up(warmup, std::move(then)) : then;
}

}  // namespace

LrSchedule::LrSchedule(std::string_view spec, std::int64_t steps)
    : factor_(made_schedule(spec, steps)) {}

}  // namespace brigade::tool
