// The library's record of a run, by its short names.
#pragma once
#include "brigade/report.h"

namespace brigade::tool {

using report::machine_setup;
using report::RunRecord;
using report::Series;
using report::Span;
using report::StepPoint;
using report::Table;

}  // namespace brigade::tool
