#include "engine/failure/watched_group.h"

#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "engine/failure/explain.h"
#include "group/abort_switch.h"
#include "torch_port/live_works.h"

namespace brigade::engine {

// Shared with the callbacks of collectives, which run on threads of the group and may be
// the last to let go: so it holds no group.
struct WatchedGroup::Ledger {
  using Clock = Watcher::Clock;
  struct UnderWay {
    Clock::time_point started;
    int64_t step;
    c10::intrusive_ptr<torch_port::LiveWork> work;
    std::string error = {};  // it has failed; the watcher is to say so
  };

  std::mutex mutex;
  uint64_t next = 0;
  std::map<uint64_t, UnderWay> under_way;
  Clock::time_point last_end{};
  int64_t step = -1;
  std::string failure;
  std::function<void()> wake;  // the watcher; empty once it has ended

  // After a failure no collective may be issued: it would pair wrongly.
  void throw_if_failed() {
    std::lock_guard lock(mutex);
    if (!failure.empty()) throw Error(failure);
  }

  void end(uint64_t number, c10::ivalue::Future& done) {
    c10::intrusive_ptr<torch_port::LiveWork> work;
    {
      std::lock_guard lock(mutex);
      const auto found = under_way.find(number);
      if (found == under_way.end()) return;  // it was given up
      if (done.hasError() && wake) {
        found->second.error = base::text_of(done.exception_ptr());
        return wake();
      }
      last_end = Clock::now();
      work = std::move(found->second.work);
      under_way.erase(found);
    }
    work->end(done.exception_ptr(), done.hasError() ? c10::IValue() : done.value());
  }
};

namespace {

using Ledger = WatchedGroup::Ledger;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

const char* name_of(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::ALLGATHER:
      return "all-gather";
    default:
      return "all-reduce";
  }
}

WorkPtr follow(const std::shared_ptr<Ledger>& ledger, WorkPtr inner) {
  auto future = inner->getFuture();
  auto work = c10::make_intrusive<torch_port::LiveWork>(std::move(inner));
  uint64_t number = 0;
  {
    std::lock_guard lock(ledger->mutex);
    number = ledger->next++;
    ledger->under_way.emplace(number,
                              Ledger::UnderWay{Ledger::Clock::now(), ledger->step, work});
    if (number == 0 && ledger->wake) ledger->wake();
  }
  future->addCallback(
      [ledger, number](c10::ivalue::Future& done) { ledger->end(number, done); });
  return work;
}

class Followed : public c10d::ProcessGroup {
 public:
  Followed(c10d::ProcessGroup& of, std::shared_ptr<Ledger> ledger)
      : ProcessGroup(of.getStore(), of.getRank(), of.getSize()),
        ledger_(std::move(ledger)) {
    for (const c10::Device& device : of.getDeviceTypes())
      setBackend(device.type(), BackendType::GLOO, of.getBackend(device.type()));
    setDefaultBackend(BackendType::GLOO);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return followed(tensors, [&] { return ProcessGroup::broadcast(tensors, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return followed(tensors, [&] { return ProcessGroup::allreduce(tensors, options); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return followed(inputs,
                    [&] { return ProcessGroup::allgather(outputs, inputs, options); });
  }

 private:
  // On a device a collective's end is a matter of streams.
  template <class Start>
  WorkPtr followed(const Tensors& tensors, Start start) const {
    ledger_->throw_if_failed();
    const bool on_cpu = !tensors.empty() && tensors.front().is_cpu();
    return on_cpu ? follow(ledger_, start()) : start();
  }

  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace

std::unique_ptr<WatchedGroup> WatchedGroup::make(const ProcessGroup& group) {
  if (group.size() == 1 || group.backend() != "gloo" || !group.store() ||
      group::can_be_aborted(group.store())) {
    return nullptr;
  }
  return std::unique_ptr<WatchedGroup>(new WatchedGroup(group));
}

WatchedGroup::WatchedGroup(const ProcessGroup& group)
    : group_(group),
      ledger_(std::make_shared<Ledger>()),
      c10d_(c10::make_intrusive<Followed>(*group.c10d(), ledger_)),
      failures_(group, group.unique_name("collectives")),
      watcher_(
          group, failures_, [this] { return oldest(); },
          [this](const std::string& why) { fail_all(why); }) {
  ledger_->wake = [this] {
    watcher_.start();
    watcher_.look_now();
  };
}

WatchedGroup::~WatchedGroup() {
  {
    std::lock_guard lock(ledger_->mutex);
    ledger_->wake = nullptr;
  }
  watcher_.stop();
  fail_all("the model was destroyed while its gradients were being reduced");
}

void WatchedGroup::begin_step() {
  std::lock_guard lock(ledger_->mutex);
  ++ledger_->step;
}

// Gloo runs few at once, so one counts as started when the one before it has ended.
std::optional<Watcher::Watched> WatchedGroup::oldest() {
  Watcher::Watched found;
  {
    std::lock_guard lock(ledger_->mutex);
    if (ledger_->under_way.empty()) return std::nullopt;
    const Ledger::UnderWay* which = &ledger_->under_way.begin()->second;
    for (const auto& [number, one] : ledger_->under_way) {
      if (one.error.empty()) continue;
      which = &one;
      break;
    }
    found.started = std::max(which->started, ledger_->last_end);
    found.error = which->error;
    found.description = name_of(which->work->retrieveOpType());
    if (which->step >= 0) found.description += ", step " + std::to_string(which->step);
  }
  if (!found.error.empty()) found.error = explain(found.error, {group_}, failures_);
  return found;
}

void WatchedGroup::fail_all(const std::string& why) {
  std::map<uint64_t, Ledger::UnderWay> lost;
  std::string cause;
  {
    std::lock_guard lock(ledger_->mutex);
    if (ledger_->failure.empty()) ledger_->failure = why;
    cause = ledger_->failure;
    lost.swap(ledger_->under_way);
  }
  for (const auto& [number, one] : lost)
    one.work->end(std::make_exception_ptr(Error(cause)));
}

}  // namespace brigade::engine
