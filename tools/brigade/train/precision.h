// The precision in which brigade train computes.
#pragma once
#include <optional>

#include "brigade/ddp_core.h"
#include "train/options.h"

namespace brigade::tool {

// The value for DdpOptions; none where everything stays in fp32. With bf16, gradients are
// sent in bf16 too.
std::optional<MixedPrecision> precision_of(const TrainOptions& options);

}  // namespace brigade::tool
