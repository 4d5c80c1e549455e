// Finds the CUDA kernels.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "kernels/cuda/cuda_kernels.h"

namespace brigade {

// Null if they cannot be used, or have no code for this device: codecs then use ATen's
// operations. The first call loads them. REQUIRES: LibTorch's CUDA part is in the process.
const kernels::CudaKernels* cuda_kernels(c10::Device device);
// The reason if cuda_kernels() is null, else none.
std::optional<std::string> why_no_cuda_kernels(c10::Device device);

struct OnCuda {
  const kernels::CudaKernels& kernels;
  c10::Device device;  // the current one
  void* stream;        // its current stream
};
// Calls work(OnCuda), with the device of `tensor` as the current one, and throws the error
// that it returns, which names `who`. REQUIRES: cuda_kernels(tensor.device()).
void on_cuda(const std::string& who, const at::Tensor& tensor,
             const std::function<int(const OnCuda&)>& work);

}  // namespace brigade
