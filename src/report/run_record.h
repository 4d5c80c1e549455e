// A record as JSON that a caller embeds in JSON of its own.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "brigade/report.h"

namespace brigade::report {

nlohmann::json to_json(const RunRecord& record);
RunRecord record_from_json(const nlohmann::json& json);

}  // namespace brigade::report
