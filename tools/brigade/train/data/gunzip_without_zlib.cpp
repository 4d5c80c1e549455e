#include "brigade/error.h"
#include "train/data/gunzip.h"

namespace brigade::tool {

std::string gunzip(std::string_view /*bytes*/) {
  throw Error("it is compressed, and this build is without zlib; unpack it with gunzip");
}

}  // namespace brigade::tool
