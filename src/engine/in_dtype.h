// A hook around another that works on gradients in another dtype.
#pragma once
#include "brigade/hook.h"

namespace brigade::engine {

// Dense buckets of floating-point gradients come to `inner` as `dtype`, and its result is
// cast back in place; others come as they are. Named `before`, the inner name, `after`.
std::shared_ptr<Hook> in_dtype(at::ScalarType dtype, std::shared_ptr<Hook> inner,
                               std::string before, std::string after);

}  // namespace brigade::engine
