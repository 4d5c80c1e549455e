#include "engine/pipeline.h"

#include <ATen/Parallel.h>
#include <pthread.h>

#include <algorithm>
#include <string>

namespace brigade::engine {

Pipeline::~Pipeline() {
  for (Station& station : stations_) {
    if (station.thread.joinable()) station.thread.detach();
  }
}

void Pipeline::open(const Order& order) {
  std::lock_guard lock(mutex_);
  for (Station& station : stations_) station.expected.insert(station.expected.end(), order);
}

void Pipeline::arrive(size_t index, const Order& order, Visit visit) {
  std::lock_guard lock(mutex_);
  if (stop_) return;
  Station& station = stations_[index];
  station.waiting.emplace(order, std::move(visit));
  if (!station.serving) {
    station.serving = true;
    station.thread =
        std::thread([self = shared_from_this(), index] { self->serve(index); });
  } else if (next_is_here(station)) {
    station.arrived.notify_one();
  }
}

void Pipeline::expect_again(size_t index, const Order& order) {
  std::lock_guard lock(mutex_);
  stations_[index].expected.insert(order);
}

bool Pipeline::expects_part(size_t index, const Order& order) {
  std::lock_guard lock(mutex_);
  const std::set<Order>& expected = stations_[index].expected;
  if (expected.empty() || expected.begin()->size() <= order.size()) return false;
  return std::equal(order.begin(), order.end(), expected.begin()->begin());
}

void Pipeline::pass(const Order& order, size_t first, size_t last) {
  std::lock_guard lock(mutex_);
  for (size_t index = first; index < last; ++index) {
    Station& station = stations_[index];
    station.expected.erase(order);
    if (next_is_here(station)) station.arrived.notify_one();
  }
}

void Pipeline::split(const Order& order, size_t first, uint32_t lanes) {
  std::lock_guard lock(mutex_);
  for (size_t index = first; index < kStations; ++index) {
    std::set<Order>& expected = stations_[index].expected;
    expected.erase(order);
    for (uint32_t lane = 0; lane <= lanes; ++lane) {
      Order part = order;
      part.push_back(lane);
      expected.insert(std::move(part));
    }
  }
}

void Pipeline::serve(size_t index) {
  at::init_num_threads();  // the program's number, as in autograd's threads
  pthread_setname_np(pthread_self(), ("brigade-" + std::to_string(index)).c_str());
  Station& station = stations_[index];
  std::unique_lock lock(mutex_);
  while (true) {
    station.arrived.wait(lock, [&] { return stop_ || next_is_here(station); });
    if (stop_) break;
    auto next =
        station.waiting.extract(station.expected.extract(station.expected.begin()).value());
    if (next.mapped().interrupt) station.interrupt = &next.mapped().interrupt;
    lock.unlock();
    next.mapped().run(next.key());
    lock.lock();
    station.interrupt = nullptr;
    lock.unlock();
    next = {};  // may destroy the bucket, so not under the lock
    lock.lock();
  }
  station.serving = false;
  thread_ended_.notify_all();
}

void Pipeline::stop(std::chrono::milliseconds grace) {
  std::map<Order, Visit> dropped[kStations];  // destroyed outside of the lock
  std::unique_lock lock(mutex_);
  stop_ = true;
  for (size_t index = 0; index < kStations; ++index) {
    dropped[index].swap(stations_[index].waiting);
    stations_[index].arrived.notify_all();
    if (stations_[index].interrupt) (*stations_[index].interrupt)();
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
