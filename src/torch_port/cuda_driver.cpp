#include "torch_port/cuda_driver.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <cstdlib>

namespace brigade::torch_port {
namespace {

// CUDA_ERROR_NO_DEVICE of cuda.h, which exists only with a toolkit.
constexpr int kNoDevice = 100;
constexpr int kDriverMismatch = 803;
constexpr int kFirstOfMps = 805, kLastOfMps = 810;

template <class Function>
Function function(const char* name) {
  return reinterpret_cast<Function>(driver_function(name));
}

std::string error_text(int error) {
  const auto text_of = function<int (*)(int, const char**)>("cuGetErrorString");
  const char* text = nullptr;
  if (!text_of || text_of(error, &text) != 0 || !text) text = "it does not say why";
  return std::string(text) + " (error " + std::to_string(error) + ")";
}

std::string advice_for(int error) {
  if (error == kDriverMismatch)
    return "; libcuda.so.1 and the kernel's driver are of different versions: start the "
           "machine anew after an update of the driver";
  if (error >= kFirstOfMps && error <= kLastOfMps)
    return "; the multi-process service (MPS) has ended or refuses: start it afresh "
           "(echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d), or unset "
           "CUDA_MPS_PIPE_DIRECTORY";
  return {};
}

std::string visible_devices() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible ? "; CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "'" : "";
}

}  // namespace

void* driver_function(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver ? dlsym(driver, name) : nullptr;
}

std::optional<int> driver_version() {
  const auto version = function<int (*)(int*)>("cuDriverGetVersion");
  int number = 0;
  if (!version || version(&number) != 0) return std::nullopt;
  return number;
}

std::optional<std::string> why_no_driver() {
  const auto start = function<int (*)(unsigned)>("cuInit");
  if (!start) return "there is no NVIDIA driver here (libcuda.so.1)";
  const int error = start(0);
  if (error == 0) return std::nullopt;
  if (error == kNoDevice) return "the NVIDIA driver finds no GPU" + visible_devices();
  return "the NVIDIA driver does not start: " + error_text(error) + advice_for(error);
}

std::optional<std::string> load_cuda_part() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) return std::nullopt;
  const char* why = dlerror();
  return "LibTorch's CUDA part cannot be loaded: " +
         std::string(why ? why : "libtorch_cuda.so");
}

std::string why_no_device() {
  if (const auto reason = why_no_driver()) return *reason;
  const auto runtime = static_cast<int>(at::detail::getCUDAHooks().versionCUDART());
  const int driver = driver_version().value_or(runtime);
  // A driver runs every runtime with its own major version.
  if (driver / 1000 < runtime / 1000)
    return "the NVIDIA driver is for CUDA " + cuda_version_text(driver) +
           " at most, LibTorch is built for " + cuda_version_text(runtime) +
           ": it needs a newer driver";
  return "LibTorch finds no GPU it can use" + visible_devices();
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace brigade::torch_port
