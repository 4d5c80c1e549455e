// The option `ratio` of hooks that send a share of the values.
#pragma once
#include <c10/util/StringUtil.h>

#include "brigade/error.h"

namespace brigade {

inline void check_ratio(const char* hook, double ratio) {
  if (ratio > 0 && ratio <= 1) return;
  throw ConfigError(
      c10::str(hook, ": ratio is ", ratio, ", expected more than 0, 1 at most"));
}

}  // namespace brigade
