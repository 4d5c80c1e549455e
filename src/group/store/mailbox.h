// Messages between the launcher of an elastic job and its workers, through the store.
//
// Vocabulary. A *worker number* is given to each worker that the launcher starts, never
// twice. A *generation* is a list of members under a number; a member's index in the list
// is its rank.
// clang-format off
// Messages from the launcher to a worker:
//   place G RANK N,N WHY the worker is RANK in generation G, with these members; WHY says
//                        why the previous one ended
//   abort G WHY          generation G is over
//   wanted G             a newcomer waits: end generation G after a step
//   finished             all members have ended their training
// Messages from a worker:
//   ready STEP DONE      it waits for `place`; its state has STEP steps, -1: no state; DONE
//                        is 1 at the end of its training
//   heard G              it knows that G is over, but may still compute
//   failed G WHY         a collective of generation G failed
//   formed G             it is in generation G, and has its state
// clang-format on
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace c10d {
class Store;
}

namespace brigade::group {

// The variable that holds the number of a worker of an elastic job.
inline constexpr const char* kWorkerNumber = "BRIGADE_ELASTIC_WORKER";

// A worker's side. Thread-safe, except that only one thread may call receive().
class WorkerMailbox {
 public:
  WorkerMailbox(c10::intrusive_ptr<c10d::Store> store, int number);
  void send(const std::string& text);
  // Waits for the next message, `limit` at most. Throws if the store is gone.
  std::optional<std::string> receive(std::chrono::milliseconds limit);
  // The next message if it has arrived; only while no thread calls receive().
  std::optional<std::string> receive_now();
  // Makes receive() return, by appending a message of its own.
  void wake();

 private:
  std::string take(const std::string& key);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string from_, to_;
  std::mutex mutex_;
  int sent_ = 0;
  std::atomic<int> received_{0};
};

// The launcher's side. Not thread-safe.
class LauncherMailbox {
 public:
  explicit LauncherMailbox(c10::intrusive_ptr<c10d::Store> store);
  void add(int worker);
  void remove(int worker);
  void send(int worker, const std::string& text);
  // The messages since the last call, with their senders. Does not wait.
  std::vector<std::pair<int, std::string>> receive();

 private:
  struct Counts {
    int sent = 0;
    int received = 0;
  };
  const c10::intrusive_ptr<c10d::Store> store_;
  std::map<int, Counts> workers_;
  int64_t seen_ = 0;
};

}  // namespace brigade::group
