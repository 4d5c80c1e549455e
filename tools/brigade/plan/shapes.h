// The shapes of the parameters that plan reckons with.
#pragma once
#include <cstdint>
#include <string>

#include "hooks/auto/prediction.h"

namespace brigade::tool {

using namespace cost;

// The floating-point tensors of a safetensors file; of one of brigade's own checkpoints,
// those of the model. Throws Error, and ConfigError for a file that has none.
ShapeList shapes_in(const std::string& path);

// A model of so many parameters of which nothing else is known.
ShapeList shapes_for(int64_t params);

}  // namespace brigade::tool
