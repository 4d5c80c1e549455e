#include "train/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/option_spec.h"
#include "brigade/error.h"

namespace brigade::tool {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw ConfigError("--schedule: " + what);
}

}  // namespace

LrSchedule::LrSchedule(std::string_view spec, std::int64_t steps) : steps_(steps) {
  static constexpr std::array<std::string_view, 3> kNames{"constant", "cosine", "step"};
  static const std::array<std::vector<std::string_view>, 3> kOptions{
      {{"warmup"}, {"warmup", "floor"}, {"warmup", "every", "factor"}}};
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const auto found = std::ranges::find(kNames, name);
  require(found != kNames.end(),
          "no schedule named '" + std::string(name) + "'" + base::suggestion(name, kNames));
  kind_ = static_cast<Kind>(found - kNames.begin());
  const base::OptionSpec given(
      name, colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1),
      kOptions[static_cast<std::size_t>(kind_)], "schedule");
  warmup_ = given.integer("warmup", 0);
  require(warmup_ >= 0, "warmup is " + std::to_string(warmup_) + "; it must be 0 or more");
  if (kind_ == Kind::cosine) {
    floor_ = given.number("floor", floor_);
    require(floor_ >= 0 && floor_ <= 1,
            "floor is " + std::to_string(floor_) + "; it must be from 0 to 1");
  }
  if (kind_ == Kind::step) {
    every_ = given.integer("every", std::max<std::int64_t>(1, steps / 3));
    require(every_ >= 1, "every is " + std::to_string(every_) + "; it must be 1 or more");
    decay_ = given.number("factor", decay_);
    require(decay_ > 0 && decay_ <= 1,
            "factor is " + std::to_string(decay_) + "; it must be above 0 and at most 1");
  }
}

double LrSchedule::factor(std::int64_t step) const {
  if (step < warmup_) {
    return static_cast<double>(step + 1) / static_cast<double>(warmup_ + 1);
  }
  const auto since = static_cast<double>(step - warmup_);
  if (kind_ == Kind::cosine) {
    const auto length = static_cast<double>(std::max<std::int64_t>(1, steps_ - warmup_));
    const double along = std::min(1.0, since / length);
    return floor_ + (1 - floor_) * 0.5 * (1 + std::cos(std::numbers::pi * along));
  }
  if (kind_ == Kind::step) {
    return std::pow(decay_, std::floor(since / static_cast<double>(every_)));
  }
  return 1;
}

}  // namespace brigade::tool
