// NVIDIA's driver, and reasons why CUDA cannot be used. Building this needs no CUDA.
#pragma once
#include <optional>
#include <string>

namespace brigade::torch_port {

// A function of the driver, which the first call loads. Null if there is no driver, or it
// is too old.
void* driver_function(const char* name);

// The newest CUDA that the driver can run, as 12040 for 12.4. None without a driver.
std::optional<int> driver_version();

// Starts the driver. Returns the reason why it cannot be used, with a remedy; none if it
// can.
std::optional<std::string> why_no_driver();

// Loads LibTorch's CUDA part; returns the reason if that fails. LibTorch decides once
// whether it has CUDA, so this must come before the first at::hasCUDA().
std::optional<std::string> load_cuda_part();

// The reason why LibTorch's CUDA part finds no device. REQUIRES: it is loaded, and finds
// none.
std::string why_no_device();

// 13000 is "13.0".
std::string cuda_version_text(int version);

}  // namespace brigade::torch_port
