// Sends named tensors and texts, such as the state of an optimizer, from rank to rank.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>

#include "brigade/named_state.h"
#include "brigade/process_group.h"

namespace brigade {

// States by receiving rank.
using StateByRank = std::map<int, NamedState>;

// Collective. Returns one state with everything that the ranks, this one included, have
// sent to this rank. If several ranks send one key, the highest rank's value stays. Tensors
// from other ranks are on `device`.
NamedState exchange_states(const ProcessGroup& group, const StateByRank& mine,
                           at::Device device);

}  // namespace brigade
