// The line of stations that buckets are handed along.
//
// Vocabulary. A *ticket* is the number of a bucket, given out in the order in which the
// Reducer starts buckets, which is the same on every rank. A *station* is a thread and a
// process group: its thread runs the k-th stretch of every hook and issues the k-th
// collective on its group. A *lane* is a bucket, or one of the parts it was split into; its
// *key* is the ticket and the path of splits. A station serves keys in ascending order,
// whatever order they arrive in, so each group sees its collectives in the same order on
// all ranks. A lane that has ended *passes*: the later stations stop expecting it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace brigade::engine {

class Run;
class Transfers;

using Key = std::vector<uint32_t>;
// One more than the collectives that one lane may await one after the other.
inline constexpr size_t kStations = 17;

// Resumes a coroutine of a bucket; keeps the bucket alive meanwhile.
struct Resume {
  std::shared_ptr<Run> run;
  std::coroutine_handle<> coroutine;
  // What to wait for first; none: nothing. A station has nothing else to do meanwhile, for
  // it serves in order.
  std::shared_ptr<Transfers> awaited = nullptr;
};

// Thread-safe. Its threads hold it, hence make().
class Line : public std::enable_shared_from_this<Line> {
 public:
  static std::shared_ptr<Line> make() { return std::shared_ptr<Line>(new Line); }
  ~Line();

  // Every station expects `key` from now on. REQUIRES: greater than all keys before it.
  void open(const Key& key);
  // The lane waits at `station` to be resumed by its thread.
  void arrive(size_t station, const Key& key, Resume resume);
  // The stations first … last - 1 stop expecting the lane.
  void pass(const Key& key, size_t first, size_t last = kStations);
  // The stations from `first` on expect key.0 … key.lanes instead of key: the parts, and
  // then what comes after them.
  void split(const Key& key, size_t first, uint32_t lanes);
  // Drops whoever waits, for transfers too, ends the threads. A thread that is stuck inside
  // a hook is left behind after `grace`.
  void stop(std::chrono::milliseconds grace);

 private:
  struct Station {
    std::set<Key> expected;
    std::map<Key, Resume> waiting;
    std::shared_ptr<Transfers> awaited;  // by its thread, now
    std::condition_variable arrived;
    std::thread thread;
    bool serving = false;
  };
  Line() = default;
  void serve(size_t index);
  bool await_transfers(Station& station, const Resume& resume,
                       std::unique_lock<std::mutex>& lock);
  static bool next_is_here(const Station& station) {
    return !station.expected.empty() && station.waiting.count(*station.expected.begin());
  }

  std::mutex mutex_;
  Station stations_[kStations];
  bool stop_ = false;
  std::condition_variable thread_ended_;
};

}  // namespace brigade::engine
