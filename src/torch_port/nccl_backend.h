// Makes NCCL backends. The code that needs CUDA's names is a module of its own,
// libbrigade_nccl.so (base/module.h), which is loaded when it is first needed.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <torch/headeronly/version.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/failure.h"
#include "torch_port/c10d_forward.h"

namespace brigade::torch_port {

// Whether LibTorch's CUDA part is in this process already.
bool cuda_is_loaded();

// Loads the module. Returns the reason why NCCL cannot be used, or none if it can.
std::optional<std::string> why_no_nccl();

// Makes CUDA device number local_rank (modulo the number of devices) current, and returns
// it. REQUIRES: !why_no_nccl().
c10::Device bind_cuda_device(int local_rank);

// The current CUDA device. REQUIRES: !why_no_nccl().
c10::Device current_cuda_device();

// REQUIRES: !why_no_nccl(); `store` is used by this backend alone; every rank calls it.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout);

// NCCL's own error for the backend's collectives, if any.
// REQUIRES: it is an NCCL backend.
std::optional<base::Cause> error_of_nccl(c10d::Backend& backend);

// Whether the device's current stream is being recorded as a CUDA graph.
bool is_capturing();

// Whether the device has reached the event, which was recorded there. For polling threads:
// it initializes no other device, and does not disturb a thread that records a CUDA graph.
// Throws the device's own error.
bool has_come_to(const c10::Event& event);

// Differs for each LibTorch, and changes with the module's table.
inline constexpr const char* kNcclModuleBuild = TORCH_VERSION "-2";

// The module's table, exported as `extern "C" const NcclModule* brigade_nccl_module()`.
struct NcclModule {
  // Module and library must be of the same build.
  const char* build;
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout);
  bool (*is_capturing)();
  bool (*has_come_to)(const c10::Event& event);
};

}  // namespace brigade::torch_port
