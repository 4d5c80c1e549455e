// Finds the CUDA kernels.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "kernels/cuda/cuda_kernels.h"

namespace brigade {

// Null where they cannot be used, or have no code for this device: codecs then work with
// ATen's operations. Loads them when it is first called. REQUIRES: LibTorch's CUDA part is
// in the process.
const kernels::CudaKernels* cuda_kernels(c10::Device device);
// Why not, if so.
std::optional<std::string> why_no_cuda_kernels(c10::Device device);

struct OnCuda {
  const kernels::CudaKernels& kernels;
  c10::Device device;  // the current one
  void* stream;        // its current stream
};
// Calls work(OnCuda), with the device of `tensor` as the current one, and throws the error
// that it gives back; `who` is for that. REQUIRES: cuda_kernels(tensor.device()).
void on_cuda(const std::string& who, const at::Tensor& tensor,
             const std::function<int(const OnCuda&)>& work);

}  // namespace brigade
