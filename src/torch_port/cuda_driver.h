// NVIDIA's driver, and why CUDA cannot be used. Nothing here needs CUDA to be built.
#pragma once
#include <optional>
#include <string>

namespace brigade::torch_port {

// A function of the driver's, which is loaded when it is first asked for. Null where there
// is no driver, or an older one.
void* driver_function(const char* name);

// The newest CUDA that the driver can run, as 12040 for 12.4. None where there is none.
std::optional<int> driver_version();

// Starts the driver. The reason why it cannot be used, with what to do about it; none if it
// can.
std::optional<std::string> why_no_driver();

// Brings LibTorch's CUDA part into this process; the reason if it cannot be loaded. LibTorch
// decides once whether it has CUDA, so this must come before at::hasCUDA() is first asked.
std::optional<std::string> load_cuda_part();

// Why LibTorch's CUDA part finds no device. REQUIRES: it is in this process, and finds
// none.
std::string why_no_device();

// 13000 is "13.0".
std::string cuda_version_text(int version);

}  // namespace brigade::torch_port
