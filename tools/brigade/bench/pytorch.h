// Compares with PyTorch's own DDP and hooks.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/workers.h"

namespace brigade::tool {

// Times PyTorch's hooks as bench does ours, and prints both side by side. `ours` are
// bench's rows. Returns {"python", "rows": […]}, where a row has times or, under "skipped",
// the reason why not; or {"skipped"} when no Python here has torch.
nlohmann::json bench_pytorch(const WorkerOptions& workers,
                             const std::vector<std::string>& specs,
                             const std::vector<int64_t>& sizes, double seconds, int steps,
                             const nlohmann::json& ours);

}  // namespace brigade::tool
