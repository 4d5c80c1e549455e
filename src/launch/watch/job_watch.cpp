#include "launch/watch/job_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/files/read_whole.h"
#include "group/live/rank_page.h"
#include "launch/watch/job_view.h"
#include "launch/watch/metrics_text.h"

namespace brigade::launching {
namespace {

JobInfo job_info(int workers, const LaunchOptions& options, const std::string& host) {
  std::string command = base::read_whole("/proc/self/cmdline");
  while (command.ends_with('\0')) command.pop_back();
  std::ranges::replace(command, '\0', ' ');
  return {.host = host,
          .command = command,
          .pid = getpid(),
          .started_ns = group::monotonic_ns(),
          .nodes = options.nodes,
          .workers = workers,
          .elastic = options.elastic.has_value(),
          .max_restarts = options.max_restarts};
}

}  // namespace

JobWatch::JobWatch(int workers, const LaunchOptions& options, const std::string& host)
    : status_(job_info(workers, options, host)) {
  if (!options.metrics_port) return;
  metrics_.emplace(*options.metrics_port);
  std::fprintf(stderr, "brigade: metrics at http://127.0.0.1:%d/metrics\n",
               metrics_->port());
}

void JobWatch::begin(AttemptPlan& plan, const Place& place) {
  status_.begin_attempt(place.attempt, place.first_rank, place.world, place.run_id);
  plan.status = &status_;
  if (!metrics_) return;
  plan.launchers_own.push_back(metrics_->fd());
  plan.started = [this, first = plan.started] {
    if (first) first();
    metrics_->start([folder = folder()] {
      const auto view = read_job(folder);
      return view ? metrics_text(*view) : "";
    });
  };
}

void JobWatch::end() {
  if (metrics_) metrics_->stop();
}

}  // namespace brigade::launching
