#include "engine/failure/deadline_thread.h"

#include "group/abort_switch.h"

namespace brigade::engine {
namespace {

using std::chrono::milliseconds;

// The interval between two checks.
constexpr milliseconds kLook{250};
// How long a bucket may take before the thread asks whether another rank has failed.
constexpr milliseconds kPatience{500};
// A bucket may exceed the group's time limit by this, because gloo's own error, at that
// limit, says more.
constexpr milliseconds kSlack{1000};

}  // namespace

DeadlineThread::DeadlineThread(ProcessGroup group, FailureStore& failures, Oldest oldest,
                               FailAll fail_all)
    : group_(std::move(group)),
      failures_(failures),
      oldest_(std::move(oldest)),
      fail_all_(std::move(fail_all)) {}

void DeadlineThread::start() {
  std::lock_guard lock(mutex_);
  if (!stop_ && !thread_.joinable()) thread_ = std::thread([this] { watch(); });
}

void DeadlineThread::look_now() {
  {
    std::lock_guard lock(mutex_);
    look_now_ = true;
  }
  wake_.notify_all();
}

void DeadlineThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DeadlineThread::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait_for(lock, kLook, [&] { return stop_ || look_now_; });
    if (stop_) return;
    look_now_ = false;
    lock.unlock();
    check_peers();
    lock.lock();
  }
}

void DeadlineThread::check_peers() {
  const std::optional<Watched> oldest = oldest_();
  if (!oldest) return;
  // A station that connects cannot be interrupted, but waiting for its bucket can.
  if (const std::string why = group::why_aborted(group_.store()); !why.empty())
    return fail_all_({.kind = Failure::aborted, .text = why});
  const auto fail = [&](base::Cause cause) {
    cause.text = "rank " + std::to_string(group_.number_in_job(group_.rank())) + ": " +
                 oldest->description + ": " + cause.text;
    fail_all_(failures_.first_cause(cause));
  };
  if (oldest->error) return fail(*oldest->error);
  const auto age = Clock::now() - oldest->started;
  if (age > group_.timeout() + kSlack) {
    base::Cause cause{.kind = Failure::timeout,
                      .text = "not complete within the time limit of " +
                              std::to_string(group_.timeout().count()) + " ms"};
    failures_.blame_silent_ranks(cause);
    fail(std::move(cause));
  } else if (age > kPatience) {
    failures_.beat();
    if (const auto cause = failures_.find()) fail_all_(*cause);
  }
}

}  // namespace brigade::engine
