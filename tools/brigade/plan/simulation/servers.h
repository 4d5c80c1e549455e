// What ranks wait for: things that serve in the order of asking.
#pragma once
#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace brigade::tool {

// One thing at a time: a link, a thread.
class Server {
 public:
  // Gives the end.
  double serve(double ready, double seconds) {
    busy_ += seconds;
    return free_ = std::max(ready, free_) + seconds;
  }
  double busy() const { return busy_; }

 private:
  double free_ = 0, busy_ = 0;
};

// As many things at a time as there are cores.
class Cores {
 public:
  explicit Cores(int count) {
    for (int core = 0; core < std::max(1, count); ++core) free_.push(0);
  }
  double serve(double ready, double seconds) {
    const double end = std::max(ready, free_.top()) + seconds;
    free_.pop();
    free_.push(end);
    return end;
  }

 private:
  std::priority_queue<double, std::vector<double>, std::greater<>> free_;
};

}  // namespace brigade::tool
