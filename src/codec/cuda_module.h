// Finds the CUDA kernels.
#pragma once
#include <optional>
#include <string>

#include "kernels/cuda/cuda_kernels.h"

namespace brigade {

// Null where they cannot be used: codecs then work with ATen's operations. Loads them when
// it is first called. REQUIRES: LibTorch's CUDA part is in the process.
const kernels::CudaKernels* cuda_kernels();
// Why not, if so.
std::optional<std::string> why_no_cuda_kernels();

}  // namespace brigade
