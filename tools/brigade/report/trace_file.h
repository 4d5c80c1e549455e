// trace.json, for Perfetto (ui.perfetto.dev) and chrome://tracing.
#pragma once
#include <string>

#include "report/run_record.h"

namespace brigade::tool {

// A process a rank; in it a row for the training loop, one for each station's thread, and
// one for each station's collectives. Series follow each other as they did in time. Empty
// where no series has spans.
std::string trace_text(const RunRecord& record);

}  // namespace brigade::tool
