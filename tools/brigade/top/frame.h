// A running job as people see it, and as machines do.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/terminal.h"
#include "launch/watch/job_view.h"

namespace brigade::tool {

// The most important first, so that a small terminal may leave out the end.
std::vector<std::string> frame_of(const launching::JobView& view, const Terminal& terminal);
nlohmann::ordered_json frame_json(const launching::JobView& view);

}  // namespace brigade::tool
