// Failure reports: as text for people, and as JSON between the launchers of several hosts.
#pragma once
#include <string>
#include <vector>

#include "brigade/launch.h"

namespace brigade::launching {

// Returns "exit code 3" or "signal SIGKILL".
std::string ending_of(const WorkerFailure& failure);
int exit_code_of(const WorkerFailure& failure);
// Returns several lines, without a newline at the end. `others`: how other workers ended.
std::string report(const WorkerFailure& failure, const std::vector<std::string>& others);

std::string to_json(const WorkerFailure& failure);
// REQUIRES: `text` comes from to_json().
WorkerFailure failure_from_json(const std::string& text);

}  // namespace brigade::launching
