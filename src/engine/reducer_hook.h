// What stands between a model's Reducer and whoever runs its hook.
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
  // Parameters without a name are numbered in the order in which they come.
  const std::string& of(const at::Tensor& parameter);
  // The names of the bucket's parameters, in its order.
  std::vector<std::string> of(const c10d::GradBucket& bucket);

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  size_t unnamed_ = 0;
};

// Serves one model, and its Reducers one after the other. A Reducer takes a comm hook once
// and keeps it for ever, so each bucket asks anew who runs it. Thread-safe.
class ReducerHook : public std::enable_shared_from_this<ReducerHook> {
 public:
  // Who runs the buckets. Called on the threads of the backward pass.
  struct Runner {
    std::function<c10::intrusive_ptr<c10::ivalue::Future>(c10d::GradBucket& bucket)> run;
    // The tensor in what the future holds. Empty: that is the tensor itself.
    std::function<at::Tensor(const c10::IValue& value)> result = {};
    // Whether the caller is the hook that is run, at work.
    std::function<bool()> runs_here;
    // What backward() throws in place of an error. Empty: the error itself.
    std::function<std::exception_ptr(const std::exception_ptr& error)> for_backward = {};
  };
  // Gives the Reducer its hook. From then on a hook that calls backward() through the
  // model's parameters gets an error. Throws when the Reducer has a hook already. REQUIRES:
  // nobody else uses the Reducer; it lives as long as `runner` may be called.
  void attach(c10d::Reducer& reducer, Runner runner);

  // Collective, if these buckets of the Reducer have not been compared yet: `compare` does
  // that, and throws where ranks differ. A Reducer makes its buckets once, and again after
  // the first pass.
  void agree_on_buckets(c10d::Reducer& reducer,
                        const std::function<void(const Buckets& buckets)>& compare);
  // The Reducer, or the ranks that it works with, are others: nothing has been compared.
  void forget_buckets();

  // For optimizers in the backward pass, which have used these parameters' gradients by the
  // end of it. Replaces what was given before.
  void set_dropped(std::vector<at::Tensor> parameters);
  // When the Reducer is done with the present backward pass, the gradients of those
  // parameters are dropped. Does nothing outside of a pass: join() reduces without one.
  // REQUIRES: called by Runner::run.
  void drop_at_end_of_backward();

 private:
  void guard_accumulators(c10d::Reducer& reducer, const Runner& runner);

  std::mutex mutex_;
  // By parameter, the accumulator of its gradient that is guarded.
  std::unordered_map<const c10::TensorImpl*, std::weak_ptr<torch::autograd::Node>> guarded_;
  // Whether the buckets that were compared are the Reducer's first ones; empty: none were.
  std::optional<bool> agreed_on_first_;
  std::vector<at::Tensor> dropped_;
  // The backward pass whose end drops them. A pass that fails never comes to its end, so
  // this is no flag.
  int pass_ = -1;
};

}  // namespace brigade::engine
