// A job's numbers in Prometheus' text form.
#pragma once
#include <string>

#include "launch/watch/job_view.h"

namespace brigade::launching {

// Version 0.0.4 of the form, with HELP and TYPE of each metric. Only ranks of this host:
// the launchers of the others serve theirs.
std::string metrics_text(const JobView& view);

}  // namespace brigade::launching
