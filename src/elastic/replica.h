// All that one rank knows of a training run, and how it is taken back or replaced.
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
  // `takes_back`: revert() will be called. Without, a commit() copies nothing.
  Replica(DdpCore& core, torch::nn::Module& model, bool takes_back);

  // Throws ConfigError for a name that is taken, and for what is each rank's own.
  void add(CheckpointPart part);
  // Ranks differ in their parameters, optimizers and hooks from now on.
  void train_locally() { apart_ = true; }
  // What the next adopt() leaves as it is.
  struct Own {
    bool model = false;
    bool optimizer = false;
  };
  void keep_own(Own own) { own_ = own; }
  // Finished steps; -1: this rank has no state that counts.
  int64_t step() const { return step_; }
  // The step is done: what a step that fails changes can be taken back to this.
  void commit();
  // Takes back what a step that failed has changed: buffers, and the hook's state.
  void revert();
  // Names of parts, the hook and so on: equal on all ranks.
  std::string describe() const;
  // Collective. All get `source`'s state, but keep what of their hook is their own; gives
  // the bytes that travelled, and says for how long.
  int64_t adopt(const ProcessGroup& group, int source, int64_t step,
                std::chrono::milliseconds& transfer);
  // What hooks send depends on the layout of the buckets: a rank that is about to leave its
  // group notes it, and those who go on begin with that of `source`. The latter is
  // collective.
  void note_buckets();
  void take_up_buckets(const ProcessGroup& group, int source);
  // All of it, and the number of steps: for a checkpoint of the whole run.
  std::vector<CheckpointPart> checkpoint_parts();
  // Of what must be equal on all ranks.
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
  // The hook of the last commit, and what it kept then, unless it takes steps back itself.
  std::weak_ptr<Hook> committed_;
  bool reverts_ = false;
  HookState hook_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // and their copies
};

}  // namespace brigade::elastic
