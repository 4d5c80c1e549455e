// Connects a model's Reducer with the runner of its hook.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/bucket_layout.h"

namespace c10d {
class GradBucket;
class Reducer;
}  // namespace c10d
namespace torch::autograd {
struct Node;
}

namespace brigade::engine {

// The names of a model's parameters. Not thread-safe.
class ParameterNames {
 public:
  void set(const at::Tensor& parameter, std::string name);
  bool knows(const at::Tensor& parameter) const;
  // Parameters without a name are numbered in the order of the calls.
  const std::string& of(const at::Tensor& parameter);
  // The names of the bucket's parameters, in the bucket's order.
  std::vector<std::string> of(const c10d::GradBucket& bucket);

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  size_t unnamed_ = 0;
};

// Serves one model, and its successive Reducers. A Reducer takes a comm hook once and keeps
// it for ever, so the runner is looked up for each bucket. Thread-safe.
class ReducerHook : public std::enable_shared_from_this<ReducerHook> {
 public:
  // Runs the buckets. Called on the threads of the backward pass.
  struct Runner {
    std::function<c10::intrusive_ptr<c10::ivalue::Future>(c10d::GradBucket& bucket)> run;
    // Returns the tensor in the future's value. Empty: the value is the tensor.
    std::function<at::Tensor(const c10::IValue& value)> result = {};
    // Whether the caller is the running hook.
    std::function<bool()> runs_here;
    // Returns the exception that backward() throws for an error. Empty: the error itself.
    std::function<std::exception_ptr(const std::exception_ptr& error)> for_backward = {};
  };
  // Registers the Reducer's hook. From then on a hook that calls backward() through the
  // model's parameters gets an error. Throws if the Reducer has a hook already. REQUIRES:
  // nothing else uses the Reducer, which lives as long as `runner` may be called.
  void attach(c10d::Reducer& reducer, Runner runner);

  // Calls `compare`, which is collective and throws where ranks differ, unless these
  // buckets of the Reducer were compared before. A Reducer makes its buckets once, and
  // again after the first pass.
  void agree_on_buckets(c10d::Reducer& reducer,
                        const std::function<void(const Buckets& buckets)>& compare);
  // To be called when the Reducer or its ranks change: buckets will be compared again.
  void forget_buckets();

  // Sets the parameters that an optimizer in the backward pass steps, with gradients that
  // are not needed after the pass. Replaces earlier ones.
  void set_dropped(std::vector<at::Tensor> parameters);
  // Drops the gradients of those parameters when the Reducer has ended the present backward
  // pass. Does nothing outside of a pass: join() reduces without one.
  // REQUIRES: called by Runner::run.
  void drop_at_end_of_backward();

 private:
  void guard_accumulators(c10d::Reducer& reducer, const Runner& runner);

  std::mutex mutex_;
  // The guarded gradient accumulators, by parameter.
  std::unordered_map<const c10::TensorImpl*, std::weak_ptr<torch::autograd::Node>> guarded_;
  // Whether the compared buckets are the Reducer's first ones; empty: none were compared.
  std::optional<bool> agreed_on_first_;
  std::vector<at::Tensor> dropped_;
  // The number of the pass that drops them at its end. A flag would not do, because a
  // failed pass never reaches its end.
  int pass_ = -1;
};

}  // namespace brigade::engine
