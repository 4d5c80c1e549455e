// The base of a launcher's links to another host's store: a thread talks to the store, and
// shares its state with the launcher's thread, which never waits.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace brigade::launching {

// The state that both threads share. The mutex guards all of it except `event`.
struct LinkThread {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::chrono::steady_clock::time_point last_heard = std::chrono::steady_clock::now();
  bool stop = false;
  bool finished = false;
  const int event;  // readable when there is news

  LinkThread();
  LinkThread(const LinkThread&) = delete;
  LinkThread& operator=(const LinkThread&) = delete;
  ~LinkThread();
  // tell() makes `event` readable, quiet() does the reverse.
  void tell() const;
  void quiet() const;
  // Asks the thread to end, and waits for that, for at most 2 s.
  void end();
};

// Calls shared->loop() in a thread of its own; the loop obeys `stop` and `changed`.
template <class Shared>
void start_link(std::shared_ptr<Shared> shared) {
  // It is detached, because a call to a store that does not answer may never return.
  std::thread([shared = std::move(shared)] {
    shared->loop();
    const std::scoped_lock lock(shared->mutex);
    shared->finished = true;
    shared->changed.notify_all();
  }).detach();
}

}  // namespace brigade::launching
