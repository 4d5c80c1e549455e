// Decides for `auto` from times of steps. It is arithmetic only, without torch and clocks.
//
// Vocabulary. A *window* is a few steps under one hook. The *exact* hook, allreduce, is
// number 0; the *candidates* follow, from the most exact to the coarsest. A *trial* is a
// window under a candidate. The tuner has *settled* when it neither measures nor tries. A
// time *saves* over another if it is less by 10 %, and by more than chance explains.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace brigade {

// The lower quartiles over a window's steps, in seconds. Other work of the machine delayed
// slower steps.
struct WindowTimes {
  double step = 0;     // from a step's first bucket to the next step's
  double exposed = 0;  // from the last bucket's start to the end of all buckets
  double busy = 0;     // while a bucket is under way
  // The time that each bucket adds to `exposed`, in the order of their start.
  std::vector<double> exposed_by_bucket = {};
  // Whether all ranks are on one host, and copy through its memory.
  bool on_one_host = false;
};
// Gives "bucket 3: 1.20 ms, bucket 4: 12 ms", for buckets that add at least a hundredth.
std::string text_by_bucket(const WindowTimes& seen);

struct Decision {
  size_t hook = 0;  // for the next window
  bool settled = false;
  std::string line;  // the decision and its reason; empty: nothing new
};

class Tuner {
 public:
  virtual ~Tuner() = default;
  // Called after a window under `hook`.
  virtual Decision after(size_t hook, const WindowTimes& seen) = 0;
  // Begins as if it had settled on `hook`; its times are still to be measured.
  virtual void resume(size_t hook) = 0;
};

// Begins with a window under the exact hook. Another hook can save at most the time exposed
// under this one. If that is too little to count as saving, or if all ranks are on one
// host, the tuner settles on the exact hook. Else it tries the candidates, from the most
// exact on, as long as the best one so far leaves enough exposed, and finds the coarsest
// that saved over each more exact one. Because one window may be faster by chance, the
// exact hook and the found one get another window each. The found one is chosen only if it
// saved again.
//
// Looks again after three windows in a row in which both step and busy time differ by half,
// or under a candidate the busy time is less by a quarter. If that changed nothing, it
// waits twice as long before it looks again.
std::unique_ptr<Tuner> make_tuner(std::vector<std::string> names);

}  // namespace brigade
