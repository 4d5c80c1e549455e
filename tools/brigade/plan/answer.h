// What plan says: a table, a recommendation and how sure that is.
#pragma once
#include <nlohmann/json.hpp>

#include "plan/options.h"
#include "plan/probe.h"

namespace brigade::tool {

// Prints it, and gives the same as {"job", "hooks", "choice"}.
nlohmann::json answer(const PlanOptions& options, const Job& job, const ShapeList& shapes,
                      const Probe& probe);

}  // namespace brigade::tool
