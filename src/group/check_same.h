// The text of an error about ranks that do not agree.
#pragma once
#include <string>
#include <vector>

namespace brigade::group {

// "the ranks have different hooks:", a line for each that some ranks have, and the remedy
// as the last line. `by_rank` holds each rank's as it is to be shown; `what` is a plural.
std::string describe_difference(const std::string& what,
                                const std::vector<std::string>& by_rank,
                                const std::string& remedy);

}  // namespace brigade::group
