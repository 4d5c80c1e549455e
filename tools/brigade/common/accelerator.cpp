#include "common/accelerator.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "brigade/error.h"
#include "torch_port/nccl_backend.h"

namespace brigade::tool {
namespace {

template <class Function>
Function driver_function(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver ? reinterpret_cast<Function>(dlsym(driver, name)) : nullptr;
}

bool driver_starts() {
  const auto init = driver_function<int (*)(unsigned)>("cuInit");
  return init && init(0) == 0;
}

// 13000 is 13.0, 2290 (in NCCL's old form) or 22905 is 2.x: `unit` is what a major is
// worth.
std::string dotted(int number, int unit, int minor_unit) {
  return std::to_string(number / unit) + "." + std::to_string(number % unit / minor_unit);
}

}  // namespace

std::optional<std::string> why_no_cuda() {
  if (!driver_function<void*>("cuInit"))
    return "there is no NVIDIA driver here (libcuda.so.1)";
  if (!driver_starts()) return "the NVIDIA driver finds no device it can use";
  // NCCL's module brings LibTorch's CUDA part with it; without the module it comes alone.
  if (!torch_port::why_no_nccl()) return std::nullopt;
  if (!at::hasCUDA() && !dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
    const char* why = dlerror();
    return "LibTorch's CUDA part cannot be loaded: " +
           std::string(why ? why : "libtorch_cuda.so");
  }
  if (!at::hasCUDA()) return "LibTorch finds no CUDA device it can use";
  return std::nullopt;
}

std::optional<std::string> cuda_driver_version() {
  const auto version = driver_function<int (*)(int*)>("cuDriverGetVersion");
  int number = 0;
  if (!version || version(&number) != 0) return std::nullopt;
  return dotted(number, 1000, 10);
}

std::vector<std::string> cuda_device_names() {
  std::vector<std::string> names;
  const auto count_of = driver_function<int (*)(int*)>("cuDeviceGetCount");
  const auto name_of = driver_function<int (*)(char*, int, int)>("cuDeviceGetName");
  int count = 0;
  if (!driver_starts() || !count_of || !name_of || count_of(&count) != 0) return names;
  for (int device = 0; device < count; ++device) {
    char name[256] = "?";
    name_of(name, sizeof name, device);
    names.emplace_back(name);
  }
  return names;
}

int count_cuda_devices() {
  const pid_t child = fork();
  if (child == 0)
    _exit(static_cast<int>(std::min<std::size_t>(cuda_device_names().size(), 255)));
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

std::optional<std::string> nccl_version() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return std::nullopt;
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int number = 0;
  if (!version || version(&number) != 0) return std::nullopt;
  return dotted(number, 10000, 100) + "." + std::to_string(number % 100);
}

c10::Device choose_device(const std::string& name, int local_rank) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (name != "cuda")
    throw ConfigError("--device is '" + name + "'; it must be cpu or cuda");
  if (const auto reason = why_no_cuda()) {
    throw ConfigError("--device cuda cannot be used here: " + *reason);
  }
  return torch_port::bind_cuda_device(local_rank);
}

}  // namespace brigade::tool
