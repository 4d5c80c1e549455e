// Sends one rank's state to all.
#pragma once
#include <map>
#include <string>

#include "brigade/checkpoint.h"
#include "brigade/process_group.h"

namespace brigade::elastic {

// States by the name of the part.
using States = std::map<std::string, PartState>;

// Sending this many bytes takes long enough to report progress.
constexpr int64_t kLargeState = int64_t{1} << 30;

// Collective. Returns `source`'s states on every rank; `mine` is read only there. On other
// ranks all memory is fresh, so that a source that dies while it sends has changed nothing.
// `bytes` gets the size sent. If that is `large` or more, the source writes a line to the
// standard error at each tenth.
States hand_over(const ProcessGroup& group, int source, const States& mine, int64_t& bytes,
                 int64_t large = kLargeState);

// Hashes everything in them, in order.
std::string hash_of(const States& states);

}  // namespace brigade::elastic
