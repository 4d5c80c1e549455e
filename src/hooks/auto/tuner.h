// What `auto` decides, from times of steps: arithmetic only, no torch and no clock.
//
// Vocabulary. A *window* is a few steps under one hook. The *exact* hook, allreduce, is
// number 0; the *candidates* follow, from the most exact to the coarsest. A *trial* is a
// window under a candidate. The tuner has *settled* when it neither measures nor tries.
// A time *saves* over another if it is less by 10 %, and by more than such times differ by
// themselves.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace brigade {

// Of a window: lower quartiles over its steps, in seconds. What is slower is other work of
// the machine.
struct WindowTimes {
  double step = 0;     // from a step's first bucket to the next step's
  double exposed = 0;  // from the last bucket's start to the end of all
  double busy = 0;     // with a bucket under way
  // What each bucket adds to `exposed`, in the order of their start.
  std::vector<double> exposed_by_bucket = {};
  // All ranks are on one host, and copy through its memory.
  bool on_one_host = false;
};
// "bucket 3: 1.20 ms, bucket 4: 12 ms", of those that add a hundredth or more.
std::string text_by_bucket(const WindowTimes& seen);

struct Decision {
  size_t hook = 0;  // of the next window
  bool settled = false;
  std::string line;  // what was decided and why; empty: nothing new
};

class Tuner {
 public:
  virtual ~Tuner() = default;
  // After a window under `hook`.
  virtual Decision after(size_t hook, const WindowTimes& seen) = 0;
  // Begins as if it had settled on `hook`, under times that it has yet to see.
  virtual void resume(size_t hook) = 0;
};

// Begins with a window under the exact hook. What is exposed under a hook is all that
// another one can save, so where that is less than what counts as saving, or all ranks are
// on one host, it settles on the exact hook. Else it tries the candidates, from the most
// exact on, as long as the best one so far leaves enough exposed, and finds the coarsest
// that saved over each more exact one. One window may be quicker by chance: the exact hook
// and the one that was found get another window each, and only if it saved again is it
// chosen; else the exact one is.
//
// Looks again when both a step and what is busy in it stay different by half, or under a
// candidate the latter less by a quarter, three times in a row; when that has changed
// nothing, it waits twice as long before it looks again.
std::unique_ptr<Tuner> make_tuner(std::vector<std::string> names);

}  // namespace brigade
