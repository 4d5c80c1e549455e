// Named tensors and texts, such as the state of an optimizer, on their way from rank to
// rank.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>

#include "brigade/named_state.h"
#include "brigade/process_group.h"

namespace brigade {

// By the rank that it is for.
using StateByRank = std::map<int, NamedState>;

// Collective. Returns what all ranks have sent to this rank, itself included, in one. Of a
// key that several ranks have sent, the highest rank's value stays. Tensors that came from
// others are on `device`.
NamedState exchange_states(const ProcessGroup& group, const StateByRank& mine,
                           at::Device device);

}  // namespace brigade
