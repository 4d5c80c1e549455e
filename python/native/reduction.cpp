#include "reduction.h"

#include <torch/csrc/autograd/graph_task.h>

#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "torch_port/reducer.h"

namespace brigade::python {
namespace {

using Group = c10d::ProcessGroup;

struct Open {
  std::mutex mutex;
  std::set<Reduction*> all;
};
Open& open() {
  static auto* const found = new Open;  // outlives whatever is destroyed at exit
  return *found;
}

class DeskHook : public c10d::CommHookInterface {
 public:
  explicit DeskHook(std::shared_ptr<Desk> desk) : desk_(std::move(desk)) {}
  FuturePtr runHook(c10d::GradBucket& bucket) override { return desk_->run(bucket); }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return desk_->result_of(result);
  }

 private:
  std::shared_ptr<Desk> desk_;
};

c10::intrusive_ptr<c10d::Backend> backend_for(Group& group, c10::DeviceType device) {
  try {
    return group.getBackend(device);
  } catch (const c10::Error& error) {
    throw ConfigError("the process group has no backend for " +
                      c10::DeviceTypeName(device, /*lower_case=*/true) +
                      " tensors: " + error.what_without_backtrace());
  }
}

}  // namespace

ProcessGroup adopt(Group& group, c10::DeviceType device) {
  const auto backend = backend_for(group, device);
  // Everything but NCCL takes the way of the CPU: over Gloo groups of our own, made from
  // the group's store.
  const bool nccl = backend->getBackendName() == "nccl";
  const auto type = nccl ? Group::BackendType::NCCL : Group::BackendType::GLOO;
  auto part =
      c10::make_intrusive<Group>(group.getStore(), group.getRank(), group.getSize());
  part->setBackend(device, type, backend);
  part->setDefaultBackend(type);
  ProcessGroup adopted = ProcessGroup::wrap(std::move(part));
  // Alone nothing has to be sent.
  return adopted.size() == 1 ? adopted.duplicate() : adopted;
}

Reduction::Reduction(ProcessGroup group, std::shared_ptr<Hook> hook) {
  const std::string name = group.unique_name("engine");
  engine_ = engine::Engine::make(std::move(group), name);
  engine_->set_hook(std::move(hook));
  std::lock_guard lock(open().mutex);
  open().all.insert(this);
}

Reduction::~Reduction() {
  {
    std::lock_guard lock(open().mutex);
    open().all.erase(this);
  }
  close();
}

void Reduction::close() {
  std::shared_ptr<engine::Engine> engine;
  {
    std::lock_guard lock(mutex_);
    engine.swap(engine_);
  }
  if (engine) engine->close();
}

void Reduction::close_all() {
  std::lock_guard lock(open().mutex);
  for (Reduction* each : open().all) each->close();
}

std::shared_ptr<engine::Engine> Reduction::engine() const {
  std::lock_guard lock(mutex_);
  if (!engine_) throw Error("this hook's connections were closed; set it again");
  return engine_;
}

void Reduction::set_names(const std::vector<std::pair<at::Tensor, std::string>>& names) {
  std::lock_guard lock(mutex_);
  for (const auto& [parameter, name] : names) {
    names_[parameter.unsafeGetTensorImpl()] = name;
  }
}

std::vector<std::string> Reduction::names_of(const c10d::GradBucket& bucket) {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    auto [found, fresh] = names_.try_emplace(parameter.unsafeGetTensorImpl());
    if (fresh) found->second = "parameter" + std::to_string(unnamed_++);
    names.push_back(found->second);
  }
  return names;
}

void Reduction::set_hook(std::shared_ptr<Hook> hook) {
  engine()->set_hook(std::move(hook));
}

std::shared_ptr<Hook> Reduction::hook() const { return engine()->hook(); }

FuturePtr Reduction::run(const c10d::GradBucket& bucket) {
  return engine()->run(Bucket(bucket, names_of(bucket)));
}

HookStats Reduction::stats() const { return engine()->stats(); }

void Desk::put(std::shared_ptr<Reduction> reduction) {
  std::shared_ptr<c10d::CommHookInterface> other;
  std::lock_guard lock(mutex_);
  reduction_.swap(reduction);
  other_.swap(other);
}

void Desk::put(std::shared_ptr<c10d::CommHookInterface> other) {
  std::shared_ptr<Reduction> reduction;
  std::lock_guard lock(mutex_);
  reduction_.swap(reduction);
  other_.swap(other);
}

std::shared_ptr<Reduction> Desk::reduction() const {
  std::lock_guard lock(mutex_);
  return reduction_;
}

std::shared_ptr<c10d::CommHookInterface> Desk::other() const {
  std::lock_guard lock(mutex_);
  return other_;
}

void Desk::drop_gradients_of(std::vector<at::Tensor> parameters) {
  std::lock_guard lock(mutex_);
  dropped_ = std::move(parameters);
}

void Desk::drop_at_end_of_backward() {
  // join() reduces without a pass.
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  {
    std::lock_guard lock(mutex_);
    if (dropped_.empty() || std::exchange(drop_queued_, true)) return;
  }
  torch_port::when_reducer_is_done([weak = weak_from_this()] {
    auto desk = weak.lock();
    if (!desk) return;
    std::vector<at::Tensor> dropped;
    {
      std::lock_guard lock(desk->mutex_);
      desk->drop_queued_ = false;
      dropped = desk->dropped_;
    }
    // A gradient may have a Python object, which ends with the GIL: not under the mutex.
    for (at::Tensor& parameter : dropped) parameter.mutable_grad().reset();
  });
}

FuturePtr Desk::run(c10d::GradBucket& bucket) {
  drop_at_end_of_backward();
  if (auto on_duty = reduction()) return on_duty->run(bucket);
  return other()->runHook(bucket);
}

at::Tensor Desk::result_of(const c10::IValue& value) {
  if (auto on_duty = other()) return on_duty->parseHookResult(value);
  return value.toTensor();
}

void attach(c10d::Reducer& reducer, std::shared_ptr<Desk> desk) {
  reducer.register_comm_hook(std::make_unique<DeskHook>(std::move(desk)));
}

}  // namespace brigade::python
