// Which ranks share a host.
#pragma once
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::group {

// `hosts`: by rank, equal for two ranks exactly when they share a host.
HostLayout make_layout(const std::vector<std::string>& hosts, int rank);

}  // namespace brigade::group
