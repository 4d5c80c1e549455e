#include "codec/cuda_module.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>
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

// The device's error for the kernels; 0: it runs them. Asked once for each device, because
// it may load the kernels there.
int error_on(c10::Device device) {
  constexpr size_t kDevices = 128;                         // more than LibTorch supports
  static std::array<std::atomic<int>, kDevices> one_more;  // the error + 1; 0: not asked
  std::atomic<int>& known = one_more.at(static_cast<size_t>(device.index()));
  if (known == 0) {
    const c10::DeviceGuard guard(device);
    known = loaded().table->usable() + 1;
  }
  return known - 1;
}

}  // namespace

const kernels::CudaKernels* cuda_kernels(c10::Device device) {
  return loaded().table && error_on(device) == 0 ? loaded().table : nullptr;
}

std::optional<std::string> why_no_cuda_kernels(c10::Device device) {
  if (!loaded().table) return loaded().reason;
  const int error = error_on(device);
  if (error == 0) return std::nullopt;
  return "they do not run on " + device.str() + ": " + loaded().table->error_text(error);
}

void on_cuda(const std::string& who, const at::Tensor& tensor,
             const std::function<int(const OnCuda&)>& work) {
  const c10::DeviceGuard guard(tensor.device());
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const kernels::CudaKernels& table = *loaded().table;
  const int error = work({table, tensor.device(),
                          cuda.getStreamNativeHandle(cuda.getStream(tensor.device()))});
  if (error)
    throw Error(who + " on " + tensor.device().str() + ": " + table.error_text(error));
}

}  // namespace brigade
