#include "future_limit.h"

#include "bindings.h"
#include "brigade/error.h"

namespace brigade::python {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How often the thread looks at the futures.
constexpr std::chrono::milliseconds kLookAtFutures{250};

struct Watched {
  SteadyClock::time_point deadline;
  FuturePtr given;
  std::string late;
};

}  // namespace

struct FutureLimit::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Watched> under_way;
  uint64_t next = 0;
  bool closed = false;
  std::thread thread;

  // The caller that takes it completes it.
  std::optional<Watched> take(uint64_t number) {
    std::lock_guard lock(mutex);
    auto found = under_way.extract(number);
    if (!found) return std::nullopt;
    return std::move(found.mapped());
  }

  std::vector<Watched> take_late() {
    std::vector<Watched> late;
    std::lock_guard lock(mutex);
    std::erase_if(under_way, [&](auto& each) {
      if (!closed && each.second.deadline > SteadyClock::now()) return false;
      late.push_back(std::move(each.second));
      return true;
    });
    return late;
  }

  void run() {
    std::unique_lock lock(mutex);
    for (bool last = false; !last;) {
      last = changed.wait_for(lock, kLookAtFutures, [&] { return closed; });
      lock.unlock();
      for (Watched& each : take_late())
        each.given->setError(
            for_backward(std::make_exception_ptr(HookError(each.late, Failure::timeout))));
      lock.lock();
    }
  }
};

FutureLimit::FutureLimit() : shared_(std::make_shared<Shared>()) {}

FutureLimit::~FutureLimit() {
  not_open();
  close();
}

void FutureLimit::close() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->closed = true;
  }
  shared_->changed.notify_all();
  if (shared_->thread.joinable()) shared_->thread.join();
}

FuturePtr FutureLimit::watch(const FuturePtr& future, Parse parse,
                             std::chrono::milliseconds limit, std::string late) {
  FuturePtr given = future->createInstance(c10::TensorType::get());
  uint64_t number = 0;
  {
    std::lock_guard lock(shared_->mutex);
    if (shared_->closed) return future;
    number = shared_->next++;
    shared_->under_way.emplace(number,
                               Watched{SteadyClock::now() + limit, given, std::move(late)});
    if (!shared_->thread.joinable())
      shared_->thread = std::thread([shared = shared_.get()] { shared->run(); });
  }
  future->addCallback(
      [shared = shared_, number, parse = std::move(parse)](c10::ivalue::Future& done) {
        const auto watched = shared->take(number);
        if (!watched) return;  // taken already
        if (done.hasError()) return watched->given->setError(done.exception_ptr());
        at::Tensor result;
        try {
          result = parse(done.value());
        } catch (...) {
          return watched->given->setError(for_backward(std::current_exception()));
        }
        watched->given->markCompleted(result, done.storages());
      });
  return given;
}

}  // namespace brigade::python
