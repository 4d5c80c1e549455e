// The look of the report, and what its page does.
#pragma once

namespace brigade::report {

extern const char* const kReportStyle;   // CSS
extern const char* const kReportScript;  // JavaScript

}  // namespace brigade::report
