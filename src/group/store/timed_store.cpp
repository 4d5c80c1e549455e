#include "group/store/timed_store.h"

#include "group/store/resolver_off.h"

namespace brigade::group {
namespace {
const std::string kNoKey;

// The key to name in a report.
const std::string& first(const std::vector<std::string>& keys) {
  return keys.empty() ? kNoKey : keys.front();
}
}  // namespace

class TimedStore::Lease {
 public:
  explicit Lease(TimedStore& store) : store_(store), lane_(store.take()) {}
  ~Lease() { store_.give_back(std::move(lane_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  const Lane* operator->() const { return &lane_; }

 private:
  TimedStore& store_;
  Lane lane_;
};

template <class Body>
auto TimedStore::call(const char* name, const std::string& key,
                      std::chrono::milliseconds limit, Body body) {
  Lease lane(*this);
  const ResolverOff off;
  return lane->watchdog->watch(name, key, limit, [&] { return body(*lane->store); });
}

TimedStore::TimedStore(c10::intrusive_ptr<c10d::Store> inner,
                       std::shared_ptr<Watchdog> watchdog)
    : Store(inner->getTimeout()),
      first_{std::move(inner), std::move(watchdog)},
      free_{first_} {}

TimedStore::Lane TimedStore::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Lane lane = std::move(free_.back());
      free_.pop_back();
      if (lane.store != first_.store) lane.store->setTimeout(getTimeout());
      return lane;
    }
  }
  return connect_again();
}

TimedStore::Lane TimedStore::connect_again() const {
  auto watchdog = std::make_shared<Watchdog>(first_.watchdog->who(), limit());
  auto store = watchdog->watch("connect", kNoKey, [&] {
    const ResolverAnswersNo off;
    return first_.store->clone();
  });
  return {std::move(store), std::move(watchdog)};
}

void TimedStore::give_back(Lane lane) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(lane));
}

c10::intrusive_ptr<c10d::Store> TimedStore::clone() {
  Lane lane = connect_again();
  return c10::make_intrusive<TimedStore>(std::move(lane.store), std::move(lane.watchdog));
}

void TimedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  call("set", key, limit(), [&](Store& inner) { inner.set(key, value); });
}

std::vector<uint8_t> TimedStore::compareSet(const std::string& key,
                                            const std::vector<uint8_t>& expected,
                                            const std::vector<uint8_t>& desired) {
  return call("compareSet", key, limit(),
              [&](Store& inner) { return inner.compareSet(key, expected, desired); });
}

std::vector<uint8_t> TimedStore::get(const std::string& key) {
  return call("get", key, getTimeout(), [&](Store& inner) { return inner.get(key); });
}

int64_t TimedStore::add(const std::string& key, int64_t value) {
  return call("add", key, limit(), [&](Store& inner) { return inner.add(key, value); });
}

bool TimedStore::deleteKey(const std::string& key) {
  return call("deleteKey", key, limit(),
              [&](Store& inner) { return inner.deleteKey(key); });
}

bool TimedStore::check(const std::vector<std::string>& keys) {
  return call("check", first(keys), limit(),
              [&](Store& inner) { return inner.check(keys); });
}

int64_t TimedStore::getNumKeys() {
  return call("getNumKeys", kNoKey, limit(),
              [&](Store& inner) { return inner.getNumKeys(); });
}

void TimedStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void TimedStore::wait(const std::vector<std::string>& keys,
                      const std::chrono::milliseconds& timeout) {
  // In LibTorch zero means "for ever"; here it means the default limit.
  const auto limit = timeout.count() > 0 ? timeout : this->limit();
  call("wait", first(keys), limit, [&](Store& inner) { inner.wait(keys, limit); });
}

const std::chrono::milliseconds& TimedStore::getTimeout() const noexcept {
  return first_.store->getTimeout();
}

void TimedStore::setTimeout(const std::chrono::milliseconds& timeout) {
  first_.store->setTimeout(timeout);
}

void TimedStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  call("append", key, limit(), [&](Store& inner) { inner.append(key, value); });
}

std::vector<std::vector<uint8_t>> TimedStore::multiGet(
    const std::vector<std::string>& keys) {
  return call("multiGet", first(keys), getTimeout(),
              [&](Store& inner) { return inner.multiGet(keys); });
}

void TimedStore::multiSet(const std::vector<std::string>& keys,
                          const std::vector<std::vector<uint8_t>>& values) {
  call("multiSet", first(keys), limit(),
       [&](Store& inner) { inner.multiSet(keys, values); });
}

bool TimedStore::hasExtendedApi() const { return first_.store->hasExtendedApi(); }

void TimedStore::queuePush(const std::string& key, const std::vector<uint8_t>& value) {
  call("queuePush", key, limit(), [&](Store& inner) { inner.queuePush(key, value); });
}

std::vector<uint8_t> TimedStore::queuePop(const std::string& key, bool block) {
  return call("queuePop", key, getTimeout(),
              [&](Store& inner) { return inner.queuePop(key, block); });
}

int64_t TimedStore::queueLen(const std::string& key) {
  return call("queueLen", key, limit(), [&](Store& inner) { return inner.queueLen(key); });
}

std::vector<std::string> TimedStore::listKeys() {
  return call("listKeys", kNoKey, limit(), [&](Store& inner) { return inner.listKeys(); });
}

}  // namespace brigade::group
