#include "engine/failure/timed_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/exception_text.h"
#include "engine/failure/failure_store.h"
#include "group/abort_switch.h"
#include "torch_port/typed_wait.h"

namespace brigade::engine {

namespace {

using InFlight = TimedGroup::InFlight;
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

WorkPtr follow(const std::shared_ptr<InFlight>& in_flight, WorkPtr inner) {
  auto future = inner->getFuture();
  auto work = c10::make_intrusive<torch_port::LiveWork>(std::move(inner));
  const uint64_t number = in_flight->begin(work, InFlight::Clock::now());
  future->addCallback([in_flight, number](c10::ivalue::Future& done) {
    in_flight->end(number, done, InFlight::Clock::now());
  });
  return work;
}

class Followed : public c10d::ProcessGroup {
 public:
  Followed(c10d::ProcessGroup& of, std::shared_ptr<InFlight> in_flight)
      : ProcessGroup(of.getStore(), of.getRank(), of.getSize()),
        in_flight_(std::move(in_flight)) {
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
  // On a device, streams wait for collectives.
  template <class Start>
  WorkPtr followed(const Tensors& tensors, Start start) const {
    in_flight_->throw_if_failed();
    const bool on_cpu = !tensors.empty() && tensors.front().is_cpu();
    return on_cpu ? follow(in_flight_, start()) : start();
  }

  const std::shared_ptr<InFlight> in_flight_;
};

}  // namespace

std::unique_ptr<TimedGroup> TimedGroup::make(const ProcessGroup& group) {
  if (group.size() == 1 || group.backend() != "gloo" || !group.store() ||
      group::can_be_aborted(group.store())) {
    return nullptr;
  }
  return std::unique_ptr<TimedGroup>(new TimedGroup(group));
}

TimedGroup::TimedGroup(const ProcessGroup& group)
    : group_(group),
      in_flight_(std::make_shared<InFlight>()),
      c10d_(c10::make_intrusive<Followed>(*group.c10d(), in_flight_)),
      failures_(group, group.unique_name("collectives")),
      deadlines_(
          group, failures_, [this] { return oldest(); },
          [this](const base::Cause& why) { fail_all(why); }) {
  in_flight_->wake = [this] {
    deadlines_.start();
    deadlines_.look_now();
  };
}

TimedGroup::~TimedGroup() {
  {
    std::lock_guard lock(in_flight_->mutex);
    in_flight_->wake = nullptr;
  }
  deadlines_.stop();
  fail_all({.text = "the model was destroyed while its gradients were being reduced"});
}

void TimedGroup::begin_step() {
  std::lock_guard lock(in_flight_->mutex);
  ++in_flight_->step;
}

std::optional<DeadlineThread::Watched> TimedGroup::oldest() {
  const auto oldest = in_flight_->oldest();
  if (!oldest) return std::nullopt;
  DeadlineThread::Watched found{oldest->started, name_of(oldest->type)};
  if (oldest->step >= 0) found.description += ", step " + std::to_string(oldest->step);
  if (oldest->error) found.error = cause_of(oldest->error);
  return found;
}

base::Cause TimedGroup::cause_of(const std::exception_ptr& error) {
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

void TimedGroup::fail_all(const base::Cause& why) {
  std::map<uint64_t, InFlight::UnderWay> lost;
  std::exception_ptr error;
  {
    std::lock_guard lock(in_flight_->mutex);
    if (!in_flight_->failure) in_flight_->failure = base::make_error(why);
    error = in_flight_->failure;
    lost.swap(in_flight_->under_way);
  }
  for (const auto& [number, one] : lost) one.work->end(error);
}

}  // namespace brigade::engine
