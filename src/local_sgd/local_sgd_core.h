// LocalSGD without the model: the hook, the averager, and one warm-up for both. A DdpCore
// or Python's DDP drives the model.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "brigade/local_sgd.h"

namespace brigade::optim {

class LocalSGDCore {
 public:
  // Collective over `group`. `inner` averages the gradients; empty: all-reduce. Throws
  // ConfigError for bad options, MismatchError if they differ between ranks.
  LocalSGDCore(const ProcessGroup& group, const LocalSGDOptions& options,
               std::shared_ptr<Hook> inner);
  // After destruction the hook throws.
  ~LocalSGDCore();
  LocalSGDCore(const LocalSGDCore&) = delete;
  LocalSGDCore& operator=(const LocalSGDCore&) = delete;

  // The hook to set on the model. It throws after many backward passes without
  // after_step().
  const std::shared_ptr<Hook>& hook() const { return hook_; }
  PostLocalSGDHook& local() { return *local_; }
  ModelAverager& averager() { return *averager_; }
  const ModelAverager& averager() const { return *averager_; }
  bool is_local() const;

  // Collective: averages the parameters if it is time.
  void after_step(const std::vector<at::Tensor>& parameters);
  void set_steps(int64_t steps);
  // Makes the hook throw ConfigError in a pass for which `joining` returns true. Ended
  // ranks ask, too.
  void watch_for_join(std::function<bool()> joining);

 private:
  struct Shared;
  class OwnedHook;
  const std::shared_ptr<ModelAverager> averager_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<PostLocalSGDHook> local_;
  std::shared_ptr<Hook> hook_;
};

}  // namespace brigade::optim
