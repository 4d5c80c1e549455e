// XXH64 with seed 0: fast enough to hash what a disk delivers. Finds accidents, not
// forgery.
#pragma once
#include <cstdint>
#include <string_view>

namespace brigade::base {

uint64_t hash64(std::string_view bytes);

}  // namespace brigade::base
