// What brigade train computes in.
#pragma once
#include <optional>

#include "brigade/ddp_core.h"
#include "train/options.h"

namespace brigade::tool {

// For DdpOptions; none where everything stays in fp32. With bf16, gradients travel in it
// too.
std::optional<MixedPrecision> precision_of(const TrainOptions& options);

}  // namespace brigade::tool
