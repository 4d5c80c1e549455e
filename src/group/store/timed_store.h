// A store with a time limit for every call.
#pragma once
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "group/store/watchdog.h"

namespace brigade::group {

// Forwards everything to `inner` under a Watchdog: a call may take the store's own time
// limit, a wait its own limit, plus a second of grace; after that the process ends with a
// report.
//
// Thread-safe, and threads do not wait for each other. In TCPStore a set() waits for
// another thread's wait(), so that two ranks can wait for each other. Here a thread that
// finds all connections busy opens another (a clone of `inner`).
class TimedStore : public c10d::Store {
 public:
  TimedStore(c10::intrusive_ptr<c10d::Store> inner, std::shared_ptr<Watchdog> watchdog);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key,
                                  const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  const std::chrono::milliseconds& getTimeout() const noexcept override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;
  void queuePush(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> queuePop(const std::string& key, bool block) override;
  int64_t queueLen(const std::string& key) override;
  std::vector<std::string> listKeys() override;

 private:
  // A connection, with a watchdog for its call.
  struct Lane {
    c10::intrusive_ptr<c10d::Store> store;
    std::shared_ptr<Watchdog> watchdog;
  };
  class Lease;

  template <class Body>
  auto call(const char* name, const std::string& key, std::chrono::milliseconds limit,
            Body body);
  Lane take();
  Lane connect_again() const;
  // The limit of a call that waits for no other rank.
  std::chrono::milliseconds limit() const { return first_.watchdog->limit(); }
  void give_back(Lane lane);

  Lane first_;
  std::mutex mutex_;
  std::vector<Lane> free_;
};

}  // namespace brigade::group
