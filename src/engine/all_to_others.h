// All-to-all without a rank's part for itself.
#pragma once
#include "brigade/hook.h"

namespace brigade::engine {

// Part k of `input` goes to the k-th of the other ranks, by rank, and part k of `output`
// comes from there. Comm::all_to_all would copy the part that stays as well. REQUIRES: two
// ranks or more, and what Comm asks of every collective.
Collective all_to_others(Comm& comm, at::Tensor input, at::Tensor output);

}  // namespace brigade::engine
