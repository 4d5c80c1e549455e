// Whether plan's arithmetic is true: the same reductions predicted and measured.
#pragma once
#include <nlohmann/json.hpp>

#include "plan/probe.h"

namespace brigade::tool {

// Two ranks reduce gradients of `bytes` with every hook, over loopback and, as root, over
// shaped links of 1 Gbit/s and 100 Mbit/s; prints measured beside predicted. What the noop
// hook takes is the step's compute. Gives {"rows", "off", "skipped"}: `off` is the number
// of rows that differ by more than 25 %.
nlohmann::json validate(const Probe& probe, int64_t bytes);

}  // namespace brigade::tool
