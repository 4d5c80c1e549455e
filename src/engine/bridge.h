// The one comm hook that a Reducer ever gets from us. A Reducer takes a hook once and keeps
// it for ever, so the bridge asks anew for each bucket who runs it.
#pragma once
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace c10d {
class CommHookInterface;
class GradBucket;
}  // namespace c10d

namespace brigade::engine {

// All are called on the thread of the backward pass.
struct BridgeCalls {
  // Before each bucket is run. Empty: nothing is to be done.
  std::function<void(const c10d::GradBucket& bucket)> before;
  std::function<c10::intrusive_ptr<c10::ivalue::Future>(c10d::GradBucket& bucket)> run;
  // The tensor in what the future holds. Empty: that is the tensor itself.
  std::function<at::Tensor(const c10::IValue& value)> result;
};
std::unique_ptr<c10d::CommHookInterface> make_bridge(BridgeCalls calls);

// The names of a model's parameters. Not thread-safe.
class ParameterNames {
 public:
  void set(const at::Tensor& parameter, std::string name);
  // The names of the bucket's parameters, in its order. Parameters without a name are
  // numbered in the order in which they come.
  std::vector<std::string> of(const c10d::GradBucket& bucket);
  const std::string& of(const at::Tensor& parameter);

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  size_t unnamed_ = 0;
};

}  // namespace brigade::engine
