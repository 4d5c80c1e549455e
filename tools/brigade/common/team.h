// Workers that measure: real processes, over loopback or a shaped link, and what their
// first rank has to say.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/process_group.h"
#include "common/shaped_link.h"

namespace brigade::tool {

// Lines of JSON from workers to the process that started them, through memory: no file that
// could be left behind. Workers, forked or started as programs, append to path().
class Answers {
 public:
  Answers();
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  std::string path() const;  // good while this process lives
  void add(const nlohmann::json& answer) const;
  // All so far. A line that is not JSON is an Error.
  std::vector<nlohmann::json> all() const;

 private:
  int fd_ = -1;
  int owner_ = 0;
};

struct TeamOptions {
  int ranks = 2;
  std::string device = "cpu";  // or "cuda": one GPU a rank, over NCCL
  // Null: all ranks on this host, over loopback. Else a host of the link for each.
  const ShapedLink* link = nullptr;
};

// Starts the ranks, each with a thread unless OMP_NUM_THREADS says otherwise, and with
// memory that is kept when freed, so that steps do not differ by the kernel's work; calls
// `body` in each. Returns when all have returned; throws what launch() throws, and where
// there is no CUDA to be had ConfigError. Ranks without a GPU of their own share one.
using TeamBody = std::function<void(ProcessGroup group, c10::Device device)>;
void run_team(const TeamOptions& options, const TeamBody& body);
// The same for a program that reads torchrun's variables.
void run_team(const TeamOptions& options, const std::vector<std::string>& command);

}  // namespace brigade::tool
