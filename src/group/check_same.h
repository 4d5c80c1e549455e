// The text of an error about ranks that differ.
#pragma once
#include <string>
#include <vector>

namespace brigade::group {

// "the ranks have different hooks:", a line for each different value with its ranks, and
// the remedy as the last line. `by_rank` has each rank's value as shown; `what` is a
// plural.
std::string describe_difference(const std::string& what,
                                const std::vector<std::string>& by_rank,
                                const std::string& remedy);

}  // namespace brigade::group
