#include "torch_port/nccl_backend.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/module.h"
#include "torch_port/cuda_driver.h"

namespace brigade::torch_port {
namespace {

struct Loaded {
  const NcclModule* module = nullptr;
  std::string reason;
};

Loaded load() {
  const base::Module file = base::load_module("brigade_nccl");
  if (!file.handle) return {nullptr, file.reason};
  using Entry = const NcclModule* (*)();
  const auto entry = reinterpret_cast<Entry>(file.symbol("brigade_nccl_module"));
  if (!entry || std::string(entry()->build) != kNcclModuleBuild) {
    return {nullptr,
            "libbrigade_nccl.so is of another build; expected LibTorch " TORCH_VERSION};
  }
  return {entry(), ""};
}

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
  if (auto reason = why_no_driver()) return reason;  // LibTorch would only warn
  if (!at::hasCUDA() || device_count() < 1) return why_no_device();
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
  const NcclModule* module = loaded().module;
  TORCH_CHECK(module, "NCCL cannot be used: ", loaded().reason);
  return module->make_backend(std::move(store), rank, size, timeout);
}

std::optional<base::Cause> error_of_nccl(c10d::Backend& backend) {
  switch (backend.getError()) {
    case c10d::ErrorType::SUCCESS:
      return std::nullopt;
    case c10d::ErrorType::TIMEOUT:
      return base::Cause{
          .kind = Failure::timeout,
          .text = "NCCL: a collective was not complete within the time limit"};
    case c10d::ErrorType::REMOTE_ERROR:
      return base::Cause{.kind = Failure::peer_lost,
                         .text = "NCCL: another rank has failed"};
    case c10d::ErrorType::COMM_ERROR:
      break;
  }
  return base::Cause{.kind = Failure::peer_lost,
                     .text =
                         "NCCL: a connection to another rank is lost, or NCCL has "
                         "failed (NCCL_DEBUG=WARN says more)"};
}

bool is_capturing() { return loaded().module && loaded().module->is_capturing(); }

bool has_come_to(const c10::Event& event) {
  return loaded().module ? loaded().module->has_come_to(event) : event.query();
}

c10::Device current_cuda_device() {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
}

}  // namespace brigade::torch_port
