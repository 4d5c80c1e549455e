// Lets Ctrl-C interrupt a backward pass that waits for other ranks. Python's signal
// handlers run between two steps of Python's own, so a wait in C++ has to ask for them.
#pragma once
#include <ATen/core/ivalue.h>

#include <vector>

namespace c10d {
class GradBucket;
}

namespace brigade::python {

// Throws what a Python signal handler has raised by now, in the form that leaves backward()
// unchanged: KeyboardInterrupt after Ctrl-C. Handlers run only on Python's main thread, on
// which a backward pass on CPUs runs; on other threads this does nothing. Takes the GIL.
void check_signals();

// A Reducer waits for the futures of a pass without looking for signals. This waits for
// them just before, and looks. Not thread-safe.
class InterruptibleWait {
 public:
  // Does not wait: it queues a wait for the end of the pass, when the buckets of all models
  // in it are under way. Does nothing outside of a pass (join() reduces without one), and
  // for buckets on a device, whose passes end on another thread. REQUIRES: called by the
  // comm hook, for each bucket in turn.
  void add(const c10d::GradBucket& bucket,
           const c10::intrusive_ptr<c10::ivalue::Future>& future);

 private:
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;  // in the present pass
};

}  // namespace brigade::python
