// The state of a training run on one rank, and how it is reverted or replaced.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "brigade/checkpoint.h"
#include "brigade/ddp_core.h"
#include "elastic/state_transfer.h"

namespace brigade::elastic {

// Not thread-safe. The core and the parts must outlive it.
class Replica {
 public:
  // `takes_back`: revert() will be called. If false, commit() copies nothing.
  Replica(DdpCore& core, torch::nn::Module& model, bool takes_back);

  // Throws ConfigError for a name that is taken, and for state that differs by rank.
  void add(CheckpointPart part);
  // Ranks differ in their parameters, optimizers and hooks from now on.
  void train_locally() { apart_ = true; }
  // The state that the next adopt() does not replace.
  struct Own {
    bool model = false;
    bool optimizer = false;
  };
  void keep_own(Own own) { own_ = own; }
  // The number of finished steps; -1: this rank has no valid state.
  int64_t step() const { return step_; }
  // Marks the step as done: revert() returns to this state.
  void commit();
  // Undoes changes of a failed step to buffers and the hook's state.
  void revert();
  // Lists names of parts, the hook and so on, which must be equal on all ranks.
  std::string describe() const;
  // Collective. All ranks get `source`'s state, but keep their own part of the hook's
  // state. Returns the bytes sent; `transfer` gets the time taken.
  int64_t adopt(const ProcessGroup& group, int source, int64_t step,
                std::chrono::milliseconds& transfer);
  // Hooks' messages depend on the layout of the buckets. A rank that is about to leave its
  // group notes the layout. The next group begins with `source`'s; this is collective.
  void note_buckets();
  void take_up_buckets(const ProcessGroup& group, int source);
  // Returns all parts and the number of steps, for a checkpoint of the whole run.
  std::vector<CheckpointPart> checkpoint_parts();
  // Hashes the state that must be equal on all ranks.
  std::string hash() const;

 private:
  HookState hook_state() const;
  void commit_hook_state();
  States collect() const;
  void load(States states);

  DdpCore& core_;
  torch::nn::Module& model_;
  std::vector<CheckpointPart> parts_;
  bool apart_ = false;
  Own own_;
  int64_t step_ = -1;
  std::vector<std::vector<std::string>> buckets_;  // as last noted
  const bool takes_back_;
  // The hook of the last commit, and its state then, unless it can revert by itself.
  std::weak_ptr<Hook> committed_;
  bool reverts_ = false;
  HookState hook_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // with their copies
};

}  // namespace brigade::elastic
