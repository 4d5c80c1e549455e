// Int8 and int4 in blocks, with error feedback.
#pragma once
#include <memory>

#include "brigade/hook.h"

namespace brigade {

// Sends one byte a value and a scale of 4 bytes for each 256 values: 1.016 bytes instead of
// float32's 4. What is rounded away is added in the next step. `flat`: as in TwoPhase.
std::shared_ptr<Hook> make_int8(bool flat);
// The same with half a byte a value and 4 bytes for each 128 values: 0.531 bytes.
std::shared_ptr<Hook> make_int4(bool flat);

}  // namespace brigade
