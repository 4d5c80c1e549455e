// What the demo's numbers say, in words.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/records.h"

namespace brigade::tool {

// From which bandwidth down, in bits a second, `series` is quicker than `base`, if a step
// takes its time over loopback and what the link needs for its bytes on top. Infinity: it
// is quicker already. None: it never is, since it sends no less.
std::optional<double> pays_below(const Series& series, const Series& base);

// One to three sentences, true for these numbers. Empty without an all-reduce to compare
// with.
std::vector<std::string> verdict(std::span<const Series> all);

}  // namespace brigade::tool
