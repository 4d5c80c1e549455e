#include "engine/failure/explain.h"

#include <array>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_port/gloo_backend.h"

namespace brigade::engine {
namespace {

// What gloo says of a connection that a peer has ended. Launchers look for these words.
std::string how_it_broke(const std::string& error) {
  constexpr std::array kWays{"Connection closed by peer", "Connection reset by peer",
                             "Broken pipe"};
  for (const char* way : kWays)
    if (error.find(way) != std::string::npos) return way;
  return {};
}

}  // namespace

std::string explain(const std::string& error, const std::vector<ProcessGroup>& groups,
                    FailureStore& failures) {
  if (error.find("imed out") != std::string::npos)
    return error + failures.describe_silent_ranks();
  const std::string broken = how_it_broke(error);
  if (broken.empty()) return error;
  for (const ProcessGroup& group : groups) {
    const auto rank = torch_port::rank_named_in(*group.c10d(), error);
    if (!rank) continue;
    return "rank " + std::to_string(*rank) + " is gone (" + broken +
           "): it has ended, or was lost." + kUnevenAdvice;
  }
  return error;
}

}  // namespace brigade::engine
