// What ranks wait for.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace brigade::tool {

// One thing at a time, in the order of asking: a link.
class Server {
 public:
  // After a pause, what it would serve in `burst` seconds goes through at once.
  explicit Server(double burst = 0) : burst_(burst), free_(-burst) {}
  // Gives the end.
  double serve(double ready, double seconds) {
    busy_ += seconds;
    free_ = std::max(ready - burst_, free_) + seconds;
    return std::max(ready, free_);
  }
  double busy() const { return busy_; }

 private:
  double burst_, free_, busy_ = 0;
};

// What needs a core for a while. `Then` is what follows.
template <class Then>
struct CoreJob {
  double seconds;
  Then then;
};

// As many jobs at a time as there are cores, under a system's scheduler: a thread that
// wakes up for a message goes before those that compute, also before one that runs, and
// those that compute take turns.
template <class Then>
class Cores {
 public:
  struct Start {
    size_t core;
    double seconds;  // until it is over, or its turn is
    int64_t run;     // what over() is to be told
  };

  // `turn`: seconds for which a job computes at most while others wait; 0: to its end.
  Cores(int count, double turn)
      : cores_(static_cast<size_t>(std::max(1, count))), turn_(turn) {}

  void ask(CoreJob<Then> job, bool for_message) {
    (for_message ? messages_ : computing_).push_back(std::move(job));
  }

  // Gives a waiting job a core; false: none waits, or none of the cores is for it.
  bool start(double now, Start& started) {
    const bool message = !messages_.empty();
    if (!message && computing_.empty()) return false;
    Core* core = find(message);
    if (!core) return false;
    if (core->busy) put_off(*core, now);
    std::deque<CoreJob<Then>>& queue = message ? messages_ : computing_;
    core->job = std::move(queue.front());
    queue.pop_front();
    core->busy = true;
    core->computes = !message;
    core->began = now;
    core->run = ++runs_;
    const bool whole = message || turn_ <= 0;
    started = {static_cast<size_t>(core - cores_.data()),
               whole ? core->job.seconds : std::min(core->job.seconds, turn_), core->run};
    return true;
  }

  // A run's time is up. True: the job is done, and `then` follows; false: the job waits
  // for its next turn, or was interrupted meanwhile.
  bool over(size_t index, int64_t run, double now, Then& then) {
    Core& core = cores_[index];
    if (!core.busy || core.run != run) return false;
    core.busy = false;
    core.job.seconds -= now - core.began;
    then = core.job.then;
    if (core.job.seconds <= kNothing) return true;
    computing_.push_back(std::move(core.job));
    return false;
  }

 private:
  static constexpr double kNothing = 1e-12;
  struct Core {
    bool busy = false, computes = false;
    CoreJob<Then> job{};
    double began = 0;
    int64_t run = 0;
  };

  Core* find(bool for_message) {
    for (Core& core : cores_)
      if (!core.busy) return &core;
    for (Core& core : cores_)
      if (for_message && core.computes) return &core;
    return nullptr;
  }
  void put_off(Core& core, double now) {
    core.job.seconds -= now - core.began;
    computing_.push_front(std::move(core.job));
  }

  std::vector<Core> cores_;
  std::deque<CoreJob<Then>> messages_, computing_;
  double turn_;
  int64_t runs_ = 0;
};

}  // namespace brigade::tool
