// Ranks with different hooks would add up each other's bytes as garbage: they must find out
// before the first bucket.
#pragma once
#include <string>

#include "brigade/process_group.h"

namespace brigade::engine {

// Collective. Throws MismatchError on every rank, with the ranks and both fingerprints,
// unless all are equal.
void agree_on_hook(const ProcessGroup& group, const std::string& fingerprint);

}  // namespace brigade::engine
