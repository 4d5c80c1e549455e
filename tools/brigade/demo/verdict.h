// Puts the demo's numbers into words.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "common/json.h"

namespace brigade::tool {

// One to three sentences that are true for these numbers. Empty without an all-reduce to
// compare with.
std::vector<std::string> verdict(std::span<const Series> all);

}  // namespace brigade::tool
