// Gives one rank's state to all.
#pragma once
#include <map>
#include <string>

#include "brigade/checkpoint.h"
#include "brigade/process_group.h"

namespace brigade::elastic {

// By the name of the part.
using States = std::map<std::string, PartState>;

// So many bytes take long enough that one wants to know how far they are.
constexpr int64_t kLargeState = int64_t{1} << 30;

// Collective. What `source` has, on every rank; `mine` is read there only. On the others
// all of it is fresh memory, so that a source that dies while it sends has changed nothing.
// `bytes` gets the size of what travelled. If that is `large` or more, the source writes a
// line to the standard error at each tenth.
States hand_over(const ProcessGroup& group, int source, const States& mine, int64_t& bytes,
                 int64_t large = kLargeState);

// A hash of everything in them, in order.
std::string hash_of(const States& states);

}  // namespace brigade::elastic
