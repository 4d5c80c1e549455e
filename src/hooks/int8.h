// Block int8 with error feedback.
#pragma once
#include <memory>

#include "brigade/hook.h"

namespace brigade {

// Half a byte more than a quarter of float32's traffic: a scale for each 256 values. What
// is rounded away is added in the next step.
std::shared_ptr<Hook> make_int8();

}  // namespace brigade
