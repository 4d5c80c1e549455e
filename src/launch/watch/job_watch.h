// How a launcher lets others watch its job: pages of the workers for brigade top, and,
// where it is asked for, a port for Prometheus.
#pragma once
#include <optional>

#include "launch/attempt.h"
#include "launch/watch/metrics_server.h"
#include "launch/watch/status_folder.h"
#include "launch/workers/worker_environment.h"

namespace brigade::launching {

class JobWatch {
 public:
  // Says on stderr where the metrics are. Throws ConfigError if the port cannot be had.
  JobWatch(int workers, const LaunchOptions& options, const std::string& host);

  // To be removed when the launcher can't; empty: there is none.
  const std::string& folder() const { return status_.path(); }
  // Before the workers of an attempt start, and when they have ended: in between, and no
  // longer, this process has a thread for the metrics.
  void begin(AttemptPlan& plan, const Place& place);
  void end();

 private:
  StatusFolder status_;
  std::optional<MetricsServer> metrics_;
};

}  // namespace brigade::launching
