// The files that the demo leaves.
#pragma once
#include <string>

#include "common/json.h"
#include "common/terminal.h"

namespace brigade::tool {

// Throws ConfigError unless files can be made in `folder`. Removes a folder that it made,
// so that an interrupted demo leaves nothing.
void check_demo_folder(const std::string& folder);

// Makes `folder` if need be, writes report.html, metrics.jsonl, trace.json and
// TensorBoard's events into it, and says where each is. Throws Error.
void write_demo_files(Terminal& terminal, const RunRecord& record,
                      const std::string& folder);

}  // namespace brigade::tool
