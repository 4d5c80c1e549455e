// SPDX-License-Identifier: BSD-3-Clause
// trace.json, for Perfetto (ui.perfetto.dev) and chrome://tracing.
#pragma once
#include <string>

#include "brigade/report/run_record.h"

namespace brigade::report {

// A process a rank; in it a row for the training loop, one for each station's thread, and
// one for each station's collectives. Series follow each other as they did in time. Empty
// where no series has spans.
BRIGADE_API std::string trace_text(const RunRecord& record);

// Whole or not at all; throws Error.
BRIGADE_API void write_trace(const RunRecord& record, const std::string& path);

}  // namespace brigade::report
