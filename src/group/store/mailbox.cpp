#include "group/store/mailbox.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade::group {
namespace {

// Counts all workers' messages, so that the launcher reads only one key if there is none.
constexpr const char* kSent = "elastic/sent";

std::string mail_from(int worker) { return "elastic/from/" + std::to_string(worker) + "/"; }
std::string mail_to(int worker) { return "elastic/to/" + std::to_string(worker) + "/"; }

}  // namespace

WorkerMailbox::WorkerMailbox(c10::intrusive_ptr<c10d::Store> store, int number)
    : store_(std::move(store)), from_(mail_from(number)), to_(mail_to(number)) {}

void WorkerMailbox::send(const std::string& text) {
  std::lock_guard lock(mutex_);
  store_->set(from_ + std::to_string(sent_++), text);
  store_->add(kSent, 1);
}

std::optional<std::string> WorkerMailbox::receive(std::chrono::milliseconds limit) {
  const std::string key = to_ + std::to_string(received_);
  try {
    store_->wait({key}, limit);
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return take(key);
}

std::optional<std::string> WorkerMailbox::receive_now() {
  const std::string key = to_ + std::to_string(received_);
  if (!store_->check({key})) return std::nullopt;
  return take(key);
}

std::string WorkerMailbox::take(const std::string& key) {
  std::string text = store_->get_to_str(key);
  store_->deleteKey(key);
  ++received_;
  return text;
}

void WorkerMailbox::wake() {
  // The launcher may write there at the same time; either message wakes receive().
  for (int ahead = 0; ahead < 2; ++ahead)
    store_->compareSet(to_ + std::to_string(received_ + ahead), std::string(),
                       std::string("woken"));
}

LauncherMailbox::LauncherMailbox(c10::intrusive_ptr<c10d::Store> store)
    : store_(std::move(store)) {}

void LauncherMailbox::add(int worker) {
  workers_[worker];
  seen_ = -1;  // it may have sent messages already
}
void LauncherMailbox::remove(int worker) { workers_.erase(worker); }

void LauncherMailbox::send(int worker, const std::string& text) {
  store_->set(mail_to(worker) + std::to_string(workers_.at(worker).sent++), text);
}

std::vector<std::pair<int, std::string>> LauncherMailbox::receive() {
  std::vector<std::pair<int, std::string>> found;
  const int64_t sent = store_->add(kSent, 0);
  if (sent == seen_) return found;
  seen_ = sent;
  for (auto& [worker, counts] : workers_) {
    while (true) {
      const std::string key = mail_from(worker) + std::to_string(counts.received);
      if (!store_->check({key})) break;
      found.emplace_back(worker, store_->get_to_str(key));
      store_->deleteKey(key);
      ++counts.received;
    }
  }
  return found;
}

}  // namespace brigade::group
