// Use of memory on several CUDA streams.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade {

// Informs the allocator that the current stream uses `tensor`, which may have been made on
// another stream. State that a hook has loaded comes from the program's stream: when the
// hook drops it, the program's stream would get the memory while the hook's stream still
// reads it. Does nothing for undefined tensors and those on the CPU.
void use_on_current_stream(const at::Tensor& tensor);

// Does the same for state that a hook keeps, and first moves it to `device`: a checkpoint
// may be of another device, and another rank's state arrives in host memory.
void use_here(at::Tensor& kept, c10::Device device);

}  // namespace brigade
