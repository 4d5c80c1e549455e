#include "base/hash.h"

// The code comes with the header: nothing is left to link, in a wheel or in a user's
// program.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace brigade::base {

uint64_t hash64(std::string_view bytes) {
  if (bytes.empty()) bytes = "";  // an empty one may have no address
  return XXH64(bytes.data(), bytes.size(), 0);
}

}  // namespace brigade::base
