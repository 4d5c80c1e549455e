#include "train/precision.h"

namespace brigade::tool {

std::optional<MixedPrecision> precision_of(const TrainOptions& options) {
  if (options.precision == "fp32") return std::nullopt;
  return MixedPrecision{.param_dtype = at::kBFloat16};
}

}  // namespace brigade::tool
