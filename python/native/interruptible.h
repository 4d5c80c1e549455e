// Lets Ctrl-C out of a backward pass that waits for other ranks. Python's signal handlers
// run between two of Python's own steps: a wait in C++ has to ask for them.
#pragma once
#include <ATen/core/ivalue.h>

#include <vector>

namespace c10d {
class GradBucket;
}

namespace brigade::python {

// Throws what a signal handler in Python has raised by now, in the form that comes out of
// backward() as it is: KeyboardInterrupt after Ctrl-C. Handlers run on Python's main thread
// only, which a backward pass on CPUs is on; on others nothing happens. Takes the GIL.
void check_signals();

// A Reducer waits for the futures of a pass with no ear for signals. This waits for them
// too, just before it does, and listens. Not thread-safe.
class InterruptibleWait {
 public:
  // Waits for nothing itself: what it queues runs at the end of the pass, when the buckets
  // of all models in it are under way. Does nothing outside of a pass (join() reduces
  // without one), and for buckets on a device, whose passes end on another thread.
  // REQUIRES: called by the comm hook, for each bucket in turn.
  void add(const c10d::GradBucket& bucket,
           const c10::intrusive_ptr<c10::ivalue::Future>& future);

 private:
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;  // of the present pass
};

}  // namespace brigade::python
