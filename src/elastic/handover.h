// Gives one rank's state to all.
#pragma once
#include <map>
#include <string>

#include "brigade/checkpoint.h"
#include "brigade/process_group.h"

namespace brigade::elastic {

// By the name of the part.
using States = std::map<std::string, PartState>;

// Collective. What `source` has, on every rank; `mine` is read there only. On the others
// all of it is fresh memory, so that a source that dies while it sends has changed nothing.
// `bytes` gets the size of what travelled.
States hand_over(const ProcessGroup& group, int source, const States& mine, int64_t& bytes);

// A hash of everything in them, in order.
std::string hash_of(const States& states);

}  // namespace brigade::elastic
