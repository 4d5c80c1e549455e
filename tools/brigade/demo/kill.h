// brigade demo --kill: a worker dies in the middle of a training, and it goes on.
#pragma once
#include <string>
#include <vector>

namespace brigade::tool {

// `hooks` has one, or none for allreduce. The report, with the generations on its curve,
// goes to the folder `out`. Throws ConfigError for more hooks, Error when replicas differ
// at the end or when nothing replaced the dead worker.
void demo_kill(const std::vector<std::string>& hooks, const std::string& out);

}  // namespace brigade::tool
