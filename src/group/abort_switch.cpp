#include "group/abort_switch.h"

#include <algorithm>
#include <thread>

#include "base/failure.h"
#include "group/network.h"

namespace brigade::group {
namespace {

// The first poll interval of the store.
constexpr std::chrono::microseconds kFirstPause{200};
constexpr std::chrono::microseconds kLongestPause{10'000};

void shut_down(const std::vector<GroupSockets>& groups) {
  if (groups.empty()) return;
  const auto has = [](const std::vector<std::string>& all, const std::string& one) {
    return std::ranges::find(all, one) != all.end();
  };
  for (const int fd : open_descriptors()) {
    const std::string there = end_of(fd, getpeername);
    if (there.empty()) continue;  // not a socket, or not connected
    const std::string here = end_of(fd, getsockname);
    for (const GroupSockets& sockets : groups) {
      if (here != sockets.own && !has(sockets.peers, there)) continue;
      shutdown(fd, SHUT_RDWR);
      break;
    }
  }
}

const AbortSwitch* switch_of(const c10::intrusive_ptr<c10d::Store>& store) {
  for (auto at = store; auto* prefix = dynamic_cast<c10d::PrefixStore*>(at.get());
       at = prefix->getUnderlyingStore()) {
    if (const auto* found = dynamic_cast<const AbortableStore*>(prefix))
      return &found->abort_switch();
  }
  return nullptr;
}

}  // namespace

void AbortSwitch::add(GroupSockets sockets) {
  std::lock_guard lock(mutex_);
  sockets_.push_back(std::move(sockets));
  if (aborted_) shut_down({sockets_.back()});
}

void AbortSwitch::add(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  {
    std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& known) { return known.expired(); });
    groups_.emplace_back(group);
    if (!aborted_) return;
  }
  abort_on_device({group});
}

void AbortSwitch::abort(const std::string& why) {
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> living;
  {
    std::lock_guard lock(mutex_);
    if (!aborted_) why_ = why;
    aborted_ = true;
    shut_down(sockets_);
    for (const auto& group : groups_)
      if (auto alive = group.lock()) living.push_back(std::move(alive));
  }
  works_->fail_all(why);
  abort_on_device(living);
}

void abort_on_device(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups) {
  std::vector<std::thread> threads;
  for (const auto& group : groups) {
    threads.emplace_back([&group] {
      try {
        group->getBackend(c10::DeviceType::CUDA)->abort();
      } catch (const std::exception&) {
        // It has failed already, so nobody waits for it.
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool AbortSwitch::aborted() const {
  std::lock_guard lock(mutex_);
  return aborted_;
}

void AbortSwitch::throw_if_aborted() const {
  std::lock_guard lock(mutex_);
  if (aborted_) throw base::AbortedError("the group was aborted: " + why_);
}

std::string AbortSwitch::why() const {
  std::lock_guard lock(mutex_);
  return aborted_ ? "the group was aborted: " + why_ : "";
}

bool can_be_aborted(const c10::intrusive_ptr<c10d::Store>& store) {
  return switch_of(store) != nullptr;
}

std::string why_aborted(const c10::intrusive_ptr<c10d::Store>& store) {
  const AbortSwitch* found = switch_of(store);
  return found ? found->why() : "";
}

AbortableStore::AbortableStore(const std::string& prefix,
                               c10::intrusive_ptr<c10d::Store> store,
                               std::shared_ptr<AbortSwitch> abort)
    : PrefixStore(prefix, std::move(store)), abort_(std::move(abort)) {}

std::vector<uint8_t> AbortableStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

void AbortableStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

// Polls, because torch logs a warning for each wait with a short limit.
void AbortableStore::wait(const std::vector<std::string>& keys,
                          const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    abort_->throw_if_aborted();
    if (check(keys)) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      C10_THROW_ERROR(DistStoreError,
                      "wait timeout after " + std::to_string(timeout.count()) + " ms");
    }
    std::this_thread::sleep_for(pause);
  }
}

std::vector<std::vector<uint8_t>> AbortableStore::multiGet(
    const std::vector<std::string>& keys) {
  wait(keys);
  return PrefixStore::multiGet(keys);
}

c10::intrusive_ptr<c10d::Store> AbortableStore::clone() {
  return c10::make_intrusive<AbortableStore>(prefix_, store_->clone(), abort_);
}

}  // namespace brigade::group
