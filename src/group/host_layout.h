// Finds which ranks share a host.
#pragma once
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::group {

// `hosts` has a text for each rank, equal for two ranks exactly if they share a host.
HostLayout make_layout(const std::vector<std::string>& hosts, int rank);

}  // namespace brigade::group
