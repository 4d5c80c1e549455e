// Block int8 with error feedback.
#pragma once
#include <memory>

#include "brigade/hook.h"

namespace brigade {

// Sends one byte a value and a scale of 4 bytes for each 256 values: 1.016 bytes instead of
// float32's 4. What is rounded away is added in the next step. `flat`: as in TwoPhase.
std::shared_ptr<Hook> make_int8(bool flat);

}  // namespace brigade
