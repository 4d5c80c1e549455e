// The same message to all other ranks. Gloo's all-gather copies everything once more, so
// each of the others gets a copy of its own by an all-to-all.
#pragma once
#include <ATen/core/Tensor.h>

#include "brigade/hook.h"

namespace brigade {

// `messages` consists of `count` equal parts. Copies the first to the places of the others.
void repeat_first(const at::Tensor& messages, int64_t count);

// `outgoing` has as many equal parts as there are other ranks. The first part is the
// message, which goes to all of them; the rest of `outgoing` is overwritten. `incoming`, of
// the same size, gets the other ranks' messages, by rank. REQUIRES: two ranks or more, and
// what Comm asks of every collective.
Collective send_to_all_others(Comm& comm, const at::Tensor& outgoing,
                              const at::Tensor& incoming);

// In place: the sum over two ranks. Each sends the other all it has, at once; an all-reduce
// sends as many bytes, but the second half of them only when the first has come and was
// added up. So this is for values that are few, and a link whose latency counts. REQUIRES:
// two ranks; `values` has one dimension.
Task<void> add_up_of_two(at::Tensor values, Comm& comm);

}  // namespace brigade
