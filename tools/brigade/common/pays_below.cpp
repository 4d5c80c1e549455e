#include "common/pays_below.h"

#include <cmath>
#include <limits>

#include "common/options.h"

namespace brigade::tool {

std::optional<double> pays_below(const StepCost& hook, const StepCost& all_reduce) {
  const double saved_bits = 8 * (all_reduce.bytes - hook.bytes);
  const double extra_seconds = hook.seconds - all_reduce.seconds;
  if (saved_bits <= 0) return std::nullopt;
  if (extra_seconds <= 0) return std::numeric_limits<double>::infinity();
  return saved_bits / extra_seconds;
}

std::string rough_rate_text(double bits_per_second) {
  const double unit = std::pow(10.0, std::floor(std::log10(bits_per_second)) - 1);
  return rate_text(std::round(bits_per_second / unit) * unit);
}

}  // namespace brigade::tool
