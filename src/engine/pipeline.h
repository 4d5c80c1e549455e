// The pipeline of stations that buckets pass. It knows only orders and functions to call.
//
// Vocabulary:
// - A *ticket* is the number of a bucket. Tickets are given out in the order in which the
//   Reducer starts buckets, which is the same on every rank.
// - A *station* is a thread. The thread of station k runs the k-th stage of every hook.
// - A *lane* is a bucket, or one of the parts that it was split into. Its *order* is the
//   ticket, followed by the path of splits.
// - A station *serves* lanes by ascending order, whatever order they *arrive* in. So the
//   k-th stages of all hooks run in the same order on all ranks.
// - A lane *visits* a station once, or again after expect_again().
// - A lane that has ended *passes*: the later stations stop expecting it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace brigade::engine {

using Order = std::vector<uint32_t>;
// The number of collectives that one lane may await one after the other, plus one.
inline constexpr size_t kStations = 17;

// A station's work for a lane. Both functions are destroyed with the visit.
struct Visit {
  // Called once with the lane's order, by the station's thread, unless stop() comes first.
  std::function<void(const Order& order)> run;
  // Makes a `run` that blocks return soon. stop() calls it while `run` runs. Empty: `run`
  // does not block.
  std::function<void()> interrupt = nullptr;
};

// Thread-safe. Its threads own it, so only make() creates one.
class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  static std::shared_ptr<Pipeline> make() {
    return std::shared_ptr<Pipeline>(new Pipeline);
  }
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Every station expects `order` from now on. REQUIRES: greater than all before it.
  void open(const Order& order);
  // The lane arrives at `station`, which serves it in its order.
  void arrive(size_t station, const Order& order, Visit visit);
  // The station expects the lane again, and serves no greater order before it.
  // REQUIRES: called from a visit at that station.
  void expect_again(size_t station, const Order& order);
  // Whether the next lane that the station expects is a part of `order`. REQUIRES: called
  // from a visit of `order` there.
  bool expects_part(size_t station, const Order& order);
  // The stations first … last - 1 stop expecting the lane.
  void pass(const Order& order, size_t first, size_t last = kStations);
  // The stations from `first` on expect order.0 … order.lanes instead of `order`: the
  // parts, and then the code after them.
  void split(const Order& order, size_t first, uint32_t lanes);
  // Drops waiting visits, interrupts running ones, and ends the threads. A thread that is
  // stuck in a visit is left behind after `grace`.
  void stop(std::chrono::milliseconds grace);

 private:
  struct Station {
    std::set<Order> expected;
    std::map<Order, Visit> waiting;
    const std::function<void()>* interrupt = nullptr;  // the running visit's
    std::condition_variable arrived;
    std::thread thread;
    bool serving = false;
  };
  Pipeline() = default;
  void serve(size_t index);
  static bool next_is_here(const Station& station) {
    return !station.expected.empty() && station.waiting.count(*station.expected.begin());
  }

  std::mutex mutex_;
  Station stations_[kStations];
  bool stop_ = false;
  std::condition_variable thread_ended_;
};

}  // namespace brigade::engine
