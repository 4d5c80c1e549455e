// Memory between streams.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade {

// Tells the allocator that work of the current stream uses `tensor`, which may have been
// made on another: what a hook has loaded comes from the program's stream, and when the
// hook lets it go that stream would get the memory while the hook's still reads it.
// Undefined tensors and those on the CPU need nothing.
void use_on_current_stream(const at::Tensor& tensor);

}  // namespace brigade
