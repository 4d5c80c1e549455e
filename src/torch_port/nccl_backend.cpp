#include "torch_port/nccl_backend.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade::torch_port {
namespace {

struct Loaded {
  const NcclModule* module = nullptr;
  std::string reason;
};

constexpr const char* kModule = "libbrigade_nccl.so";

// Of the library, program or Python module that this function is in; ends with a slash.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&why_no_nccl), &info) || !info.dli_fname)
    return "";
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Loaded load() {
  // Beside it, then on its run path.
  const std::string beside = own_folder() + kModule;
  const std::string path = access(beside.c_str(), F_OK) == 0 ? beside : kModule;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    return {
        nullptr,
        "its module is not there, or cannot be loaded (built without a CUDA toolkit?): " +
            std::string(why ? why : path)};
  }
  using Entry = const NcclModule* (*)();
  auto entry = reinterpret_cast<Entry>(dlsym(handle, "brigade_nccl_module"));
  if (!entry || std::string(entry()->build) != TORCH_VERSION) {
    return {nullptr, path + " is of another build; expected LibTorch " TORCH_VERSION};
  }
  return {entry(), ""};
}

// Never unloaded: LibTorch's CUDA part cannot be.
const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

c10::DeviceIndex device_count() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

}  // namespace

bool cuda_is_loaded() { return at::hasCUDA(); }

std::optional<std::string> why_no_nccl() {
  if (!loaded().module) return loaded().reason;
  if (!at::hasCUDA()) return "LibTorch has no CUDA here";
  if (device_count() < 1) return "there is no CUDA device that can be used";
  return std::nullopt;
}

c10::Device bind_cuda_device(int local_rank) {
  c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Device device(c10::DeviceType::CUDA,
                           static_cast<c10::DeviceIndex>(local_rank % device_count()));
  cuda.setDevice(device);
  return device;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout) {
  return loaded().module->make_backend(std::move(store), rank, size, timeout);
}

}  // namespace brigade::torch_port
