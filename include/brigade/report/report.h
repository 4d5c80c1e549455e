// SPDX-License-Identifier: BSD-3-Clause
// report.html: one file that holds everything it shows, and needs no network.
#pragma once
#include <string>

#include "brigade/report/run_record.h"

namespace brigade::report {

BRIGADE_API std::string report_html(const RunRecord& record);

// Whole or not at all; throws Error.
BRIGADE_API void write_report(const RunRecord& record, const std::string& path);

}  // namespace brigade::report
