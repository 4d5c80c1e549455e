// Sends the same message to all other ranks. It uses an all-to-all with a copy of the
// message for each, because Gloo's all-gather copies everything once more.
#pragma once
#include <ATen/core/Tensor.h>

#include "brigade/hook.h"

namespace brigade {

// `messages` consists of `count` equal parts. Copies the first part to all others.
void repeat_first(const at::Tensor& messages, int64_t count);

// `outgoing` has an equal part for each other rank. The first part is the message to all;
// the rest of `outgoing` is overwritten. `incoming`, of the same size, gets the other
// ranks' messages, by rank. REQUIRES: two ranks or more, and Comm's rules for every
// collective.
Collective send_to_all_others(Comm& comm, const at::Tensor& outgoing,
                              const at::Tensor& incoming);

// In place: the sum over two ranks. Each sends all its values to the other at once. An
// all-reduce sends as many bytes, but the second half only after the first has arrived and
// was summed. So this is for few values, where latency counts. REQUIRES: two ranks;
// `values` has one dimension.
Task<void> add_up_of_two(at::Tensor values, Comm& comm);

}  // namespace brigade
