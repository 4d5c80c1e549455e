// What `auto` decides, from times of steps: arithmetic only, no torch and no clock.
//
// Vocabulary. A *window* is a few steps under one hook. The *exact* hook, allreduce, is
// number 0; the *candidates* follow, from the most exact to the coarsest. A *trial* is a
// window under a candidate. The judge has *settled* when it neither measures nor tries.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace brigade {

// Of a window: lower quartiles over its steps, in seconds. What is slower is other work of
// the machine.
struct WindowTimes {
  double step = 0;      // from a step's first bucket to the next step's
  double exposed = 0;   // from the last bucket's start to the end of all
  double busy = 0;      // with a bucket under way
  double backward = 0;  // from the first bucket's start to the last's
};

struct Verdict {
  size_t hook = 0;  // of the next window
  bool settled = false;
  std::string line;  // what was decided and why; empty: nothing new
};

// What a step would take under each hook, from a window under the exact one. The first is
// what was measured.
using Predict = std::function<std::vector<double>(const WindowTimes& exact)>;

class Judge {
 public:
  virtual ~Judge() = default;
  // After a window under `hook`.
  virtual Verdict after(size_t hook, const WindowTimes& seen) = 0;
  // Begins as if it had settled on `hook`, under times that it has yet to see.
  virtual void resume(size_t hook) = 0;
};

// Predicts after the first window, under the exact hook; tries what should save 10 % or
// more, the quickest first; settles on the coarsest that saved 10 % over each more exact
// one, or on the exact one. Looks again when both a step and what is busy in it stay
// different by half, or under a candidate the latter less by a quarter, three times in a
// row; when that has changed nothing, it waits twice as
// long before it looks again.
std::unique_ptr<Judge> make_judge(std::vector<std::string> names, Predict predict);

}  // namespace brigade
