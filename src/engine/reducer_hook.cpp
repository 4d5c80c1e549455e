#include "engine/reducer_hook.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

#include "brigade/error.h"
#include "torch_port/reducer.h"

namespace brigade::engine {
namespace {

using ForBackward = std::function<std::exception_ptr(const std::exception_ptr& error)>;

[[noreturn]] void throw_from_backward(const ForBackward& for_backward,
                                      const std::exception_ptr& error) {
  std::rethrow_exception(for_backward ? for_backward(error) : error);
}

class CommHook : public c10d::CommHookInterface {
 public:
  explicit CommHook(ReducerHook::Runner runner) : runner_(std::move(runner)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    try {
      return runner_.run(bucket);
    } catch (...) {
      throw_from_backward(runner_.for_backward, std::current_exception());
    }
  }
  at::Tensor parseHookResult(const c10::IValue& value) override {
    return runner_.result ? runner_.result(value) : value.toTensor();
  }

 private:
  const ReducerHook::Runner runner_;
};

}  // namespace

// ---- ParameterNames ---------------------------------------------------------------------

void ParameterNames::set(const at::Tensor& parameter, std::string name) {
  names_[parameter.unsafeGetTensorImpl()] = std::move(name);
}

bool ParameterNames::knows(const at::Tensor& parameter) const {
  return names_.contains(parameter.unsafeGetTensorImpl());
}

const std::string& ParameterNames::of(const at::Tensor& parameter) {
  auto [found, fresh] = names_.try_emplace(parameter.unsafeGetTensorImpl());
  if (fresh) found->second = "parameter" + std::to_string(unnamed_++);
  return found->second;
}

std::vector<std::string> ParameterNames::of(const c10d::GradBucket& bucket) {
  std::vector<std::string> names;
  for (const at::Tensor& parameter : bucket.getParameters()) names.push_back(of(parameter));
  return names;
}

// ---- ReducerHook ------------------------------------------------------------------------

void ReducerHook::attach(c10d::Reducer& reducer, Runner runner) {
  reducer.register_comm_hook(std::make_unique<CommHook>(runner));
  guard_accumulators(reducer, runner);
}

// The Reducer would mistake such gradients for those of the hook's pass; and where the hook
// runs inside of the Reducer's own call, it would deadlock.
void ReducerHook::guard_accumulators(c10d::Reducer& reducer, const Runner& runner) {
  const auto check = [runs_here = runner.runs_here, for_backward = runner.for_backward] {
    if (!runs_here()) return;
    const Error error(
        "backward: called by the hook of this very model, in its backward pass, for "
        "gradients of the model's own parameters; a hook computes with its bucket");
    throw_from_backward(for_backward, std::make_exception_ptr(error));
  };
  std::lock_guard lock(mutex_);
  for (const auto& bucket : torch_port::buckets_of(reducer)) {
    for (const at::Tensor& parameter : bucket) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      auto& known = guarded_[parameter.unsafeGetTensorImpl()];
      if (known.lock() == accumulator) continue;
      known = accumulator;
      torch_port::guard_accumulator(*accumulator, check);
    }
  }
}

void ReducerHook::agree_on_buckets(
    c10d::Reducer& reducer, const std::function<void(const Buckets& buckets)>& compare) {
  const bool first = reducer.should_rebuild_buckets();
  {
    std::lock_guard lock(mutex_);
    if (agreed_on_first_ == first) return;
  }
  compare(torch_port::buckets_of(reducer));
  std::lock_guard lock(mutex_);
  agreed_on_first_ = first;
}

void ReducerHook::forget_buckets() {
  std::lock_guard lock(mutex_);
  agreed_on_first_.reset();
}

void ReducerHook::set_dropped(std::vector<at::Tensor> parameters) {
  std::lock_guard lock(mutex_);
  dropped_.swap(parameters);
}

void ReducerHook::drop_at_end_of_backward() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == -1) return;
  {
    std::lock_guard lock(mutex_);
    if (dropped_.empty() || std::exchange(pass_, pass) == pass) return;
  }
  torch_port::when_reducer_is_done([weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    std::vector<at::Tensor> parameters;
    {
      std::lock_guard lock(self->mutex_);
      parameters = self->dropped_;
    }
    // A gradient may have a Python object, and destroying that takes the GIL: not under the
    // mutex.
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  });
}

}  // namespace brigade::engine
