// Files that gzip has compressed.
#pragma once
#include <string>
#include <string_view>

namespace brigade::tool {

// Decompresses `bytes`. Throws Error with the reason only: they are no gzip file, are
// damaged or cut off, or become larger than any data set; or this build has no zlib.
std::string gunzip(std::string_view bytes);

}  // namespace brigade::tool
