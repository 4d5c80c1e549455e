// XXH64 with seed 0. It is faster than a disk, and detects accidents, not forgery.
#pragma once
#include <cstdint>
#include <string_view>

namespace brigade::base {

uint64_t hash64(std::string_view bytes);

}  // namespace brigade::base
