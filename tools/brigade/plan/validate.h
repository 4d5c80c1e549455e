// Whether plan's arithmetic is true: the same reductions predicted and measured.
#pragma once
#include <nlohmann/json.hpp>

#include "plan/probe.h"

namespace brigade::tool {

struct ValidationSetting {
  int hosts = 2;
  int ranks_per_host = 1;
  double link_bits = 0;   // 0: loopback, on which all ranks are one host's
  bool simulate = false;  // instead of plan's arithmetic
};

// Real ranks reduce gradients of `bytes` with every hook, in each setting; where none is
// given two ranks over loopback, and as root over links of 1 Gbit/s and 100 Mbit/s, and two
// hosts of two ranks over 1 Gbit/s. Prints measured beside predicted. What the noop hook
// takes is the step's compute, and all ranks share this machine's cores. A simulation plays
// whole steps, so those are what is measured for it. Gives {"rows", "off", "skipped"}:
// `off` is the number of rows that differ by more than 25 %.
nlohmann::json validate(const Probe& probe, int64_t bytes,
                        std::vector<ValidationSetting> settings);

}  // namespace brigade::tool
