// What an engine tells those who watch the job.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "brigade/hook.h"
#include "group/live/rank_status.h"

namespace brigade::group {
class RankPage;
}

namespace brigade::engine {

// Does nothing where no launcher watches. Not thread-safe.
class LiveStatus {
 public:
  using Clock = std::chrono::steady_clock;

  LiveStatus();
  ~LiveStatus();
  LiveStatus(const LiveStatus&) = delete;
  LiveStatus& operator=(const LiveStatus&) = delete;

  // Tells nothing any more; another model of this process may.
  void close();
  // A step begins, so the one before is over.
  void begin_step(const std::string& hook);
  // A bucket was handed over. Of one step a second some of its values are looked at.
  void started(const at::Tensor& bucket, Clock::time_point at);
  // A bucket that started at `begin` is reduced.
  void ended(std::int64_t index, const HookTraffic& cost, Clock::time_point begin,
             Clock::time_point end);

 private:
  struct Reduced {
    std::int64_t bytes_sent;
    Clock::time_point begin, end;
  };

  group::StepStatus step_over(Clock::time_point now);
  void show_buckets(group::RankStatus& status) const;

  group::RankPage* page_;
  bool claimed_ = false;
  bool sampling_ = false;
  Clock::time_point sampled_at_ = {};
  Clock::time_point step_began_ = {}, last_start_ = {};
  Clock::time_point reduced_before_ = {};  // the end of the step before
  std::int64_t bad_gradients_ = 0;         // not told yet
  std::vector<Reduced> reduced_;           // of this step, by bucket
};

}  // namespace brigade::engine
