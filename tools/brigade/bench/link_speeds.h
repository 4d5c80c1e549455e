// Finds the link speed at which each hook overtakes all-reduce, from what bench measured.
#pragma once
#include <nlohmann/json.hpp>

namespace brigade::tool {

// Adds to each of bench's rows "pays": "always", "never", or "below" with
// "pays_below_bit_s", by pays_below(). These rows get none: allreduce itself, a hook whose
// result is no mean, a model without a hook, `auto`, which would choose otherwise on
// another link, and all rows of a size without allreduce. REQUIRES: measured over loopback.
void add_link_speeds(nlohmann::json& rows);
// Prints a line for each hook and a column for each size.
void print_link_speeds(const nlohmann::json& rows);

}  // namespace brigade::tool
