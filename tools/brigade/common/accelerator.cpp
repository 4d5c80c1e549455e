#include "common/accelerator.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "brigade/error.h"
#include "common/libtorch_log.h"
#include "torch_port/cuda_driver.h"
#include "torch_port/nccl_backend.h"

namespace brigade::tool {
namespace {

template <class Function>
Function driver_function(const char* name) {
  return reinterpret_cast<Function>(torch_port::driver_function(name));
}

}  // namespace

std::optional<std::string> why_no_cuda() {
  if (auto reason = torch_port::why_no_driver()) return reason;
  // NCCL's module brings LibTorch's CUDA part with it; without the module it comes alone.
  if (!torch_port::why_no_nccl()) return std::nullopt;
  if (auto reason = torch_port::load_cuda_part()) return reason;
  if (!at::hasCUDA()) return torch_port::why_no_device();
  return std::nullopt;
}

std::optional<std::string> cuda_driver_version() {
  const auto version = torch_port::driver_version();
  if (!version) return std::nullopt;
  return torch_port::cuda_version_text(*version);
}

std::vector<std::string> cuda_device_names() {
  std::vector<std::string> names;
  const auto count_of = driver_function<int (*)(int*)>("cuDeviceGetCount");
  const auto name_of = driver_function<int (*)(char*, int, int)>("cuDeviceGetName");
  int count = 0;
  if (torch_port::why_no_driver() || !count_of || !name_of || count_of(&count) != 0)
    return names;
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
  // 22905 is 2.29.5.
  return std::to_string(number / 10000) + "." + std::to_string(number % 10000 / 100) + "." +
         std::to_string(number % 100);
}

bool mps_is_running() {
  const char* named = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return std::filesystem::exists(std::string(named ? named : "/tmp/nvidia-mps") +
                                 "/control");
}

c10::Device choose_device(const std::string& name, int local_rank) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (name != "cuda")
    throw ConfigError("--device is '" + name + "'; it must be cpu or cuda");
  if (const auto reason = why_no_cuda()) {
    throw ConfigError("--device cuda cannot be used here: " + *reason);
  }
  quiet_libtorch_log();
  return torch_port::bind_cuda_device(local_rank);
}

}  // namespace brigade::tool
