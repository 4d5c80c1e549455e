// The option `small` of dense hooks.
#pragma once
#include <cstdint>
#include <memory>

#include "brigade/hooks.h"

namespace brigade {

// `hook` with vectors, and other gradients of fewer than `below` values, averaged exactly
// beside it; the hook itself if `below` is 0. Named and printed as the hook with an option
// "small".
std::shared_ptr<Hook> with_small_option(std::shared_ptr<Hook> hook, int64_t below);

}  // namespace brigade
