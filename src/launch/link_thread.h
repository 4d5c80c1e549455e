// What a launcher's link to the store of another host is made of: a thread that does the
// talking, and what it shares with the launcher's own, which never waits.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace brigade::launching {

// The base of what both threads share. All of it under the mutex, except `event`.
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
  // There is news, and: it has been taken.
  void tell() const;
  void quiet() const;
  // Asks the thread to come to its end, and waits for that, 2 s at most.
  void end();
};

// Calls shared->loop() in a thread of its own, which sees to `stop` and `changed`.
template <class Shared>
void start_link(std::shared_ptr<Shared> shared) {
  // Detached: a call to a store that has become mute may never return.
  std::thread([shared = std::move(shared)] {
    shared->loop();
    const std::scoped_lock lock(shared->mutex);
    shared->finished = true;
    shared->changed.notify_all();
  }).detach();
}

}  // namespace brigade::launching
