// All-to-all, with a say in what goes to whom.
#pragma once
#include <vector>

#include "brigade/hook.h"

namespace brigade::engine {

// Part k of `input` goes to the k-th of the other ranks, by rank, and part k of `output`
// comes from there. Comm::all_to_all would copy the part that stays as well. REQUIRES: two
// ranks or more, and what Comm asks of every collective.
Collective all_to_others(Comm& comm, at::Tensor input, at::Tensor output);

// Parts of any length: the first to[0] elements of `input` go to rank 0, the next to[1] to
// rank 1, and so on; `output` is made of from[0] elements of rank 0, from[1] of rank 1 … A
// part for oneself is copied. REQUIRES: no rank's input is empty, the lengths that two
// ranks have for a part between them are equal, and what Comm asks of every collective but
// equal sizes.
Collective exchange_parts(Comm& comm, at::Tensor input, std::vector<int64_t> to,
                          at::Tensor output, std::vector<int64_t> from);

}  // namespace brigade::engine
