#include "engine/line.h"

#include <pthread.h>

#include <string>

#include "engine/run.h"
#include "engine/transfers.h"

namespace brigade::engine {

Line::~Line() {
  for (Station& station : stations_) {
    if (station.thread.joinable()) station.thread.detach();
  }
}

void Line::open(const Key& key) {
  std::lock_guard lock(mutex_);
  for (Station& station : stations_) station.expected.insert(station.expected.end(), key);
}

void Line::arrive(size_t index, const Key& key, Resume resume) {
  std::lock_guard lock(mutex_);
  if (stop_) return;
  Station& station = stations_[index];
  station.waiting.emplace(key, std::move(resume));
  if (!station.serving) {
    station.serving = true;
    station.thread =
        std::thread([self = shared_from_this(), index] { self->serve(index); });
  } else if (next_is_here(station)) {
    station.arrived.notify_one();
  }
}

void Line::pass(const Key& key, size_t first, size_t last) {
  std::lock_guard lock(mutex_);
  for (size_t index = first; index < last; ++index) {
    Station& station = stations_[index];
    station.expected.erase(key);
    if (next_is_here(station)) station.arrived.notify_one();
  }
}

void Line::split(const Key& key, size_t first, uint32_t lanes) {
  std::lock_guard lock(mutex_);
  for (size_t index = first; index < kStations; ++index) {
    std::set<Key>& expected = stations_[index].expected;
    expected.erase(key);
    for (uint32_t lane = 0; lane <= lanes; ++lane) {
      Key part = key;
      part.push_back(lane);
      expected.insert(std::move(part));
    }
  }
}

void Line::serve(size_t index) {
  pthread_setname_np(pthread_self(), ("brigade-" + std::to_string(index)).c_str());
  Station& station = stations_[index];
  std::unique_lock lock(mutex_);
  while (true) {
    station.arrived.wait(lock, [&] { return stop_ || next_is_here(station); });
    if (stop_) break;
    auto next =
        station.waiting.extract(station.expected.extract(station.expected.begin()).value());
    if (!await_transfers(station, next.mapped(), lock)) {
      lock.unlock();
      next = {};
      lock.lock();
      break;
    }
    lock.unlock();
    next.mapped().run->resume(next.mapped().coroutine, index, next.key());
    next = {};  // may end the bucket: not under the lock
    lock.lock();
  }
  station.serving = false;
  thread_ended_.notify_all();
}

// False: the line was stopped meanwhile.
bool Line::await_transfers(Station& station, const Resume& resume,
                           std::unique_lock<std::mutex>& lock) {
  if (!resume.awaited) return true;
  station.awaited = resume.awaited;
  lock.unlock();
  resume.awaited->complete();
  lock.lock();
  station.awaited = nullptr;
  return !stop_;
}

void Line::stop(std::chrono::milliseconds grace) {
  std::map<Key, Resume> dropped[kStations];  // ends them outside of the lock
  std::unique_lock lock(mutex_);
  stop_ = true;
  for (size_t index = 0; index < kStations; ++index) {
    dropped[index].swap(stations_[index].waiting);
    stations_[index].arrived.notify_all();
    if (stations_[index].awaited) stations_[index].awaited->abort();
  }
  const auto all_ended = [&] {
    return std::none_of(std::begin(stations_), std::end(stations_),
                        [](const Station& station) { return station.serving; });
  };
  thread_ended_.wait_for(lock, grace, all_ended);
  for (Station& station : stations_) {
    if (!station.thread.joinable() || station.serving) continue;
    lock.unlock();
    station.thread.join();
    lock.lock();
  }
}

}  // namespace brigade::engine
