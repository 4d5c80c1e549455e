#include "codec/cuda_module.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "base/module.h"
#include "brigade/error.h"

namespace brigade {
namespace {

struct Loaded {
  const kernels::CudaKernels* table = nullptr;
  std::string reason;
};

Loaded load() {
  if (const char* off = std::getenv("BRIGADE_CUDA_KERNELS"); off && std::string(off) == "0")
    return {nullptr, "BRIGADE_CUDA_KERNELS=0"};
  const base::Module file = base::load_module("brigade_cuda");
  if (!file.handle) return {nullptr, file.reason};
  const auto entry = reinterpret_cast<decltype(&kernels::brigade_cuda_kernels)>(
      file.symbol("brigade_cuda_kernels"));
  if (!entry || entry()->version != kernels::kCudaKernelsVersion)
    return {nullptr, "libbrigade_cuda.so is of another build"};
  return {entry(), ""};
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

const kernels::CudaKernels* cuda_kernels() { return loaded().table; }

std::optional<std::string> why_no_cuda_kernels() {
  if (loaded().table) return std::nullopt;
  return loaded().reason;
}

void on_cuda(const std::string& who, const at::Tensor& tensor,
             const std::function<int(const OnCuda&)>& work) {
  const c10::DeviceGuard guard(tensor.device());
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const kernels::CudaKernels& table = *cuda_kernels();
  const int error = work({table, tensor.device(),
                          cuda.getStreamNativeHandle(cuda.getStream(tensor.device()))});
  if (error)
    throw Error(who + " on " + tensor.device().str() + ": " + table.error_text(error));
}

}  // namespace brigade
