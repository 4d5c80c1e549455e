// brigade demo --kill: a worker dies in the middle of a training, and it goes on.
#pragma once
#include <string>
#include <vector>

namespace brigade::tool {

// `hooks`: one, or none for allreduce. Throws ConfigError for more, Error when replicas
// differ at the end or nobody replaced the dead worker.
void demo_kill(const std::vector<std::string>& hooks);

}  // namespace brigade::tool
