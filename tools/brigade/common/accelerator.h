// What this process can do with CUDA. The program does not link it: it is loaded when it is
// first asked for.
#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

namespace brigade::tool {

// Loads LibTorch's CUDA part. The reason why it cannot be used; none when it can.
// REQUIRES: no workers are forked from this process afterwards.
std::optional<std::string> why_no_cuda();

// "13.0"; none where the driver is missing.
std::optional<std::string> cuda_driver_version();
// By device number; asks the driver. Empty where there is none.
std::vector<std::string> cuda_device_names();
// How many there are, at most 255. Asked in a process of its own: CUDA does not survive a
// fork, and this process may still fork workers.
int count_cuda_devices();
// Whether NVIDIA's multi-process service takes this process's work: without it processes
// that share a GPU take turns.
bool mps_is_running();
// Of the NCCL that is loaded; none where it is not.
std::optional<std::string> nccl_version();

// The device that worker `local_rank` computes on, made current: `name` is cpu or cuda.
// Throws ConfigError with the reason where there is no CUDA.
c10::Device choose_device(const std::string& name, int local_rank);

}  // namespace brigade::tool
