#include "engine/failure/watched_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/exception_text.h"
#include "engine/failure/failure_store.h"
#include "group/abort_switch.h"
#include "torch_port/typed_wait.h"

namespace brigade::engine {

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
  const uint64_t number = ledger->begin(work, Ledger::Clock::now());
  future->addCallback([ledger, number](c10::ivalue::Future& done) {
    ledger->end(number, done, Ledger::Clock::now());
  });
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
          [this](const base::Cause& why) { fail_all(why); }) {
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
  fail_all({.text = "the model was destroyed while its gradients were being reduced"});
}

void WatchedGroup::begin_step() {
  std::lock_guard lock(ledger_->mutex);
  ++ledger_->step;
}

std::optional<Watcher::Watched> WatchedGroup::oldest() {
  const auto oldest = ledger_->oldest();
  if (!oldest) return std::nullopt;
  Watcher::Watched found{oldest->started, name_of(oldest->type)};
  if (oldest->step >= 0) found.description += ", step " + std::to_string(oldest->step);
  if (oldest->error) found.error = cause_of(oldest->error);
  return found;
}

base::Cause WatchedGroup::cause_of(const std::exception_ptr& error) {
  base::Cause cause;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    cause = torch_port::failure_of(exception, *group_.c10d());
  } catch (...) {
    cause.text = base::text_of(error);
  }
  if (cause.rank) cause.rank = group_.number_in_job(*cause.rank);
  explain(cause, failures_);
  return cause;
}

void WatchedGroup::fail_all(const base::Cause& why) {
  std::map<uint64_t, Ledger::UnderWay> lost;
  std::exception_ptr error;
  {
    std::lock_guard lock(ledger_->mutex);
    if (!ledger_->failure) ledger_->failure = base::make_error(why);
    error = ledger_->failure;
    lost.swap(ledger_->under_way);
  }
  for (const auto& [number, one] : lost) one.work->end(error);
}

}  // namespace brigade::engine
