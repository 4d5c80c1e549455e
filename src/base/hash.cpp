#include "base/hash.h"

// The header contains the code, so wheels and users' programs need not link a library.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace brigade::base {

uint64_t hash64(std::string_view bytes) {
  if (bytes.empty()) bytes = "";  // data() may be null
  return XXH64(bytes.data(), bytes.size(), 0);
}

}  // namespace brigade::base
