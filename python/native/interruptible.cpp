#include "interruptible.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace brigade::python {
namespace {

// How often a wait looks for signals. People do not notice this delay, and a step that
// waits less never takes the GIL.
constexpr std::chrono::milliseconds kListenForSignals{100};

// The future may complete after the wait was interrupted, so both own this.
struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
};

void wait_and_listen(c10::ivalue::Future& future) {
  if (future.completed()) return;
  auto completion = std::make_shared<Completion>();
  future.addCallback([completion](c10::ivalue::Future&) {
    std::lock_guard lock(completion->mutex);
    completion->reached = true;
    completion->changed.notify_all();
  });
  const auto reached = [&] {
    std::unique_lock lock(completion->mutex);
    return completion->changed.wait_for(lock, kListenForSignals,
                                        [&] { return completion->reached; });
  };
  while (!reached()) check_signals();
}

}  // namespace

void check_signals() {
  pybind11::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) {
    python_error interrupted;
    interrupted.persist();
    throw interrupted;
  }
}

void InterruptibleWait::add(const c10d::GradBucket& bucket,
                            const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  if (!bucket.getBuffer().device().is_cpu()) return;
  if (bucket.getIndex() == 0) futures_.clear();  // they belong to a pass that has failed
  futures_.push_back(future);
  if (!bucket.isLast()) return;
  // The Reducer queues the end of its pass as soon as the hook of the last bucket returns.
  torch::autograd::Engine::get_default_engine().queue_callback(
      [futures = std::exchange(futures_, {})] {
        // The Reducer throws a future's error itself.
        for (const auto& each : futures) wait_and_listen(*each);
      });
}

}  // namespace brigade::python
