// How the learning rate changes while training goes on.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace brigade::tool {

class LrSchedule {
 public:
  // "constant", "cosine:warmup=20,floor=0.1" or "step:every=100,factor=0.5,warmup=20".
  //   warmup: steps in which the rate rises from almost nothing to its full value (0).
  //   floor: what cosine ends at, as a part of the full value, 0 to 1 (0).
  //   every, factor: after each so many steps the rate is multiplied by so much, 0 < factor
  //   <= 1 (0.1).
  // Throws ConfigError.
  LrSchedule(std::string_view spec, std::int64_t steps);

  // What the full rate is multiplied by in step `step`, from 0.
  double factor(std::int64_t step) const;

 private:
  enum class Kind : std::uint8_t { constant, cosine, step };
  Kind kind_ = Kind::constant;
  std::int64_t steps_;
  std::int64_t warmup_ = 0;
  double floor_ = 0;
  std::int64_t every_ = 1;
  double decay_ = 0.1;
};

}  // namespace brigade::tool
