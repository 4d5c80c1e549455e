// What the user asked of `brigade plan`.
#pragma once
#include <string>
#include <vector>

namespace brigade::tool {

struct PlanOptions {
  std::string params;
  std::string model;
  std::string hooks;
  std::vector<int> hosts{2};
  int gpus = 1;
  std::string link;
  double latency_us = -1;  // negative: as measured
  double compute_ms = -1;
  bool cpu = false;
  std::string device = "cpu";
  bool simulate = false;
  std::string speeds = "measured";
  double straggler = 1;
  double jitter = 0;
  bool validate = false;
  std::string validate_size = "48M";
  std::string json;
};

}  // namespace brigade::tool
