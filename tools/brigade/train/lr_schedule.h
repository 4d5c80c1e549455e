// Changes the learning rate while training goes on.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "brigade/optim.h"

namespace brigade::tool {

class LrSchedule {
 public:
  // "constant", "cosine:warmup=20,floor=0.1", "step:every=100,factor=0.5,warmup=20" or
  // "one_cycle:rising=0.3,start_divisor=25,final_divisor=10000".
  //   warmup: steps in which the rate rises from almost nothing to its full value (0).
  // floor: the final rate of cosine, as a part of the full value, 0 to 1 (0).
  // every, factor: after every so many steps the rate is multiplied by factor, 0 < factor
  // <= 1 (0.1).
  //   rising, start_divisor, final_divisor: see optim::OneCycleOptions; the full value is
  //   the cycle's top.
  // Throws ConfigError.
  LrSchedule(std::string_view spec, std::int64_t steps);

  // The factor of the full rate in step `step`, counted from 0.
  double factor(std::int64_t step) const { return factor_(step); }

 private:
  optim::Schedule factor_;
};

}  // namespace brigade::tool
