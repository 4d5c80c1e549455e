// What the demo leaves behind.
#pragma once
#include <string>

#include "common/terminal.h"
#include "report/run_record.h"

namespace brigade::tool {

// Writes report.html, metrics.jsonl, trace.json and TensorBoard's events into `folder`, and
// says where each is. Throws Error.
void write_demo_files(Terminal& terminal, const RunRecord& record,
                      const std::string& folder);

}  // namespace brigade::tool
