// Averages tensors with a hook, outside of any backward pass and without a Reducer. It
// works with any hook of the table, its codec, error memory and statistics.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

namespace engine {
class Engine;
}

// A tensor to average: `values`, of the parameter's shape, under the parameter's name, by
// which hooks keep their state.
struct AveragedTensor {
  std::string name;
  at::Tensor parameter;
  at::Tensor values;
};

// Means that are under way or finished.
class Means {
 public:
  Means() = default;
  explicit Means(std::vector<at::Tensor> values) : values_(std::move(values)) {}
  // Returns them in the items' order. Blocks, with NCCL only the stream; throws HookError.
  const std::vector<at::Tensor>& wait();

 private:
  friend class HookAveraging;
  struct PendingMean {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::vector<at::Tensor> parameters;
  };
  std::vector<PendingMean> parts_;
  std::vector<at::Tensor> values_;
};

class HookAveraging {
 public:
  // Collective. REQUIRES: all ranks' hooks are equal. `what` names the connections.
  HookAveraging(ProcessGroup group, std::shared_ptr<Hook> hook, const std::string& what);
  ~HookAveraging();
  HookAveraging(const HookAveraging&) = delete;
  HookAveraging& operator=(const HookAveraging&) = delete;

  // Collective: all ranks start the same items in the same order. The items travel in
  // buckets of up to `bucket_bytes`, while the caller computes.
  Means start(const std::vector<AveragedTensor>& items, int64_t bucket_bytes);
  const std::shared_ptr<Hook>& hook() const;
  HookStats stats() const;

 private:
  const std::shared_ptr<engine::Engine> engine_;
};

}  // namespace brigade
