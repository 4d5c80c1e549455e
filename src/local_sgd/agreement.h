// Ranks that average at different steps would wait for each other for ever, or add up what
// does not belong together.
#pragma once
#include <string>

#include "brigade/process_group.h"

namespace brigade {

// Collective. Throws MismatchError on every rank, with the ranks and their texts, unless
// all are equal. `what`: "averagers".
void agree_on(const ProcessGroup& group, const std::string& what, const std::string& mine);

}  // namespace brigade
