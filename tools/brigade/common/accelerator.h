// Says what this process can do with CUDA. The program does not link CUDA but loads it when
// it is first asked for.
#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

namespace brigade::tool {

// Loads LibTorch's CUDA part. Returns the reason why it cannot be used, or none. REQUIRES:
// no workers are forked from this process afterwards.
std::optional<std::string> why_no_cuda();

// "13.0"; none where the driver is missing.
std::optional<std::string> cuda_driver_version();
// The names by device number, from the driver. Empty where there is none.
std::vector<std::string> cuda_device_names();
// How many devices there are, at most 255. Asks in a separate process: CUDA does not
// survive a fork, and this process may still fork workers.
int count_cuda_devices();
// Whether NVIDIA's multi-process service runs this process's work. Without it processes
// that share a GPU take turns.
bool mps_is_running();
// The version of the NCCL that is loaded; none without one.
std::optional<std::string> nccl_version();

// Makes the device that worker `local_rank` computes on current, and returns it. `name` is
// cpu or cuda. Throws ConfigError with the reason where there is no CUDA.
c10::Device choose_device(const std::string& name, int local_rank);

}  // namespace brigade::tool
