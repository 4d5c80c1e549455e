// What a collective's error says to people.
#pragma once
#include <string>
#include <vector>

#include "brigade/process_group.h"
#include "engine/failure/failure_store.h"

namespace brigade::engine {

// The text of an error of a collective in one of `groups`, which says who did not take
// part, where that can be told: the rank that a broken connection leads to, or those that
// nothing is heard of. May listen to the others for less than a second.
std::string explain(const std::string& error, const std::vector<ProcessGroup>& groups,
                    FailureStore& failures);

}  // namespace brigade::engine
