// At which link speed each hook overtakes all-reduce, from what bench measured.
#pragma once
#include <nlohmann/json.hpp>

namespace brigade::tool {

// Adds to each of bench's rows "pays": "always", "never", or "below" with
// "pays_below_bit_s", by pays_below(). Rows that get none: allreduce itself, a hook whose
// result is no mean, a model without a hook, `auto`, which would choose otherwise on
// another link, and all of a size without a row of allreduce. REQUIRES: measured over
// loopback.
void add_link_speeds(nlohmann::json& rows);
// A line a hook and a column a size.
void print_link_speeds(const nlohmann::json& rows);

}  // namespace brigade::tool
