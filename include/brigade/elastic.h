// SPDX-License-Identifier: BSD-3-Clause
// Training that goes on when a worker dies.
//
//   auto job = brigade::join_job();  // under brigade run --elastic; alone: a job of one
//   brigade::DistributedDataParallel ddp(net, job.group());
//   torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
//   brigade::ElasticSampler sampler(data.size(0), batch, {.epochs = 10});
//   brigade::ElasticTraining training(job, ddp, optimizer, sampler);
//   while (auto rows = training.next()) {
//     training.step([&] {
//       loss(ddp->forward(data.index_select(0, *rows)), target.index_select(0, *rows))
//           .backward();
//     });
//   }
//
// Vocabulary. A *generation* is the members of a job from one change of them to the next.
// When one dies, the others form the next: one that has finished the most steps gives its
// state to all, and a step that nobody finished is tried again. Nobody is ever ahead by
// more than one step, so no more than that is lost.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/checkpoint.h"
#include "brigade/distributed_data_parallel.h"
#include "brigade/error.h"
#include "brigade/process_group.h"

namespace torch::optim {
class Optimizer;
}

namespace brigade {

struct ElasticJobOptions {
  // As in ProcessGroupOptions.
  std::string backend = "auto";
  // How long one collective may take; a member that is silent for longer is ended.
  // BRIGADE_TIMEOUT (seconds) changes the default of 300 s.
  std::optional<std::chrono::milliseconds> timeout = {};
};

// This process's part in a job. Copies share it.
class BRIGADE_API ElasticJob {
 public:
  struct State;
  explicit ElasticJob(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // The members of the present generation. In an elastic job a group of one until the first
  // ElasticTraining::next(): a newcomer builds its model before it takes part.
  const ProcessGroup& group() const;
  // Counts from 0; -1 before the first.
  int generation() const;
  // Whether brigade run --elastic started it. If not, the group is that of
  // init_process_group(), for good, and an error of a collective is the caller's.
  bool is_elastic() const;

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// Not collective in an elastic job; otherwise init_process_group(). Throws as that does.
BRIGADE_API ElasticJob join_job(const ElasticJobOptions& options = {});

struct ElasticSamplerOptions {
  bool shuffle = true;
  // Must be equal on all ranks. The order of an epoch depends on seed + epoch only.
  uint64_t seed = 0;
  int64_t epochs = 1;
};

// Deals out a dataset step by step. It counts what all ranks together have consumed, so
// that the rest of an epoch can be dealt out anew to any number of ranks: every sample of
// an epoch is trained exactly once.
class BRIGADE_API ElasticSampler {
 public:
  // `batch`: the rows of one rank in one step. Throws ConfigError for zeros.
  ElasticSampler(int64_t samples, int64_t batch, const ElasticSamplerOptions& options = {});

  int64_t epoch() const { return epoch_; }
  // Samples of this epoch in steps that are done.
  int64_t consumed() const { return consumed_; }
  bool at_end() const { return epoch_ >= options_.epochs; }
  // How many samples the next step takes with so many ranks: batch * ranks; at the end of
  // an epoch what is left, and in the step before that up to ranks - 1 more, so that no
  // rank is left without.
  int64_t rows_in_step(int ranks) const;
  // Those of one rank, whose numbers differ by one at most. Empty: there are fewer samples
  // left than ranks.
  at::Tensor rows(int rank, int ranks) const;
  // The step is done.
  void advance(int ranks);
  // Samples, batch, seed and so on: equal on all ranks.
  std::string describe() const;
  // Epoch and position, for a checkpoint or a newcomer; shared by all ranks.
  CheckpointPart part(std::string name = "sampler");

 private:
  void make_order();

  int64_t samples_;
  int64_t batch_;
  ElasticSamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t consumed_ = 0;
  at::Tensor order_;
};

// Local SGD: see ElasticTraining::train_locally. Equal on all ranks.
struct ElasticLocalSGD {
  // Steps from one meeting to the next; 1 or more.
  int64_t period = 16;
  // DiLoCo's outer step, Nesterov's: 0.7 and 0.9 there. 1 and 0: the plain mean, local SGD.
  double outer_lr = 1;
  double outer_momentum = 0;
};

// One generation that was formed.
struct ElasticEvent {
  int generation = 0;
  int64_t step = 0;  // finished steps in the state that all members have
  int members = 0;
  // Why the one before ended; empty for the first.
  std::string why = {};
  // From the moment this rank noticed until it could train again.
  std::chrono::milliseconds lost{0};
  // Bytes of state that were handed over; 0: everybody had it. And how long they travelled,
  // a part of `lost`.
  int64_t bytes = 0;
  std::chrono::milliseconds transfer{0};
};

// Drives the loop of one model. Not thread-safe. Everything it is given must outlive it.
class BRIGADE_API ElasticTraining {
 public:
  // Not collective. Throws ConfigError for what cannot go on after a death: optimizers in
  // the backward pass, ZeRO (its shards die with their rank), optimizers whose state cannot
  // be saved, a hook with a group of its own.
  // `optimizer`: torch's, or one of brigade/optim, which then steps all parameters that
  // have a gradient.
  template <class M, class Optimizer>
  ElasticTraining(ElasticJob job, DistributedDataParallel<M>& ddp, Optimizer& optimizer,
                  ElasticSampler& sampler)
      : ElasticTraining(std::move(job), ddp->core(), *ddp->module(), optimizer, sampler) {}
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  torch::optim::Optimizer& optimizer, ElasticSampler& sampler);
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  optim::Optimizer& optimizer, ElasticSampler& sampler);
  // ZeRO's: throws ConfigError.
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  optim::ShardedOptimizer& optimizer, ElasticSampler& sampler);
  ~ElasticTraining();
  ElasticTraining(const ElasticTraining&) = delete;
  ElasticTraining& operator=(const ElasticTraining&) = delete;

  // Something else that all ranks have alike and a newcomer needs: a schedule, a mean of
  // parameters, a GradScaler (scaler_part). Before the first next(), on every rank the
  // same.
  void keep(CheckpointPart part);
  void keep(std::string name, std::function<PartState()> save,
            std::function<void(const PartState&)> load);
  // For the day when all die, and for launchers that start everybody again after a death
  // (torchrun, brigade run --max-restarts): saves a checkpoint in `folder`, which all ranks
  // see, after every `every`-th step, and the first next() takes up the one that is there.
  // Before the first next(), on every rank the same. Throws ConfigError unless every >= 1.
  void checkpoint(std::string folder, int64_t every);
  // Local SGD, or DiLoCo: gradients are not averaged, and no hook runs; each rank steps its
  // own parameters, and every `period` steps these become their mean over whoever is a
  // member then, at the end of the training too. Who survives a death keeps its own
  // parameters and optimizer state; a newcomer begins with those of one member. What a rank
  // that dies has learned since the last meeting is gone, and so may be the rows of one
  // step of a rank that survives. Before the first next(), on every rank the same. Throws
  // ConfigError for options out of range.
  void train_locally(const ElasticLocalSGD& options);
  // What makes a step in place of optimizer.step(): scaler.step(optimizer), a schedule.
  void on_step(std::function<void()> apply);
  // next() ends after so many steps in all, if the epochs do not end before. Every rank
  // says the same at the same step.
  void end_after(int64_t steps);
  // Called when a generation was formed, this rank's first included.
  void on_generation(std::function<void(const ElasticEvent&)> tell);

  // Collective. The rows that this rank trains on in the next step; none at the end of the
  // last epoch, when all ranks have come there. Forms the first generation, and the next
  // one when somebody waits to join. A rank without samples of its own, at the end of an
  // epoch, gets one that another rank has; its gradients do not count.
  std::optional<at::Tensor> next();
  // Collective. Drops the gradients, calls `pass`, which runs forward and backward, and
  // makes a step of the optimizer. True: the step is done. False: a member was lost
  // meanwhile; those who are left have formed the next generation, and next() deals the
  // rows out again. Exceptions of `pass` itself pass through.
  bool step(const std::function<void()>& pass);

  // Finished steps, of all generations.
  int64_t steps() const;
  const ProcessGroup& group() const;
  const std::vector<ElasticEvent>& events() const;

 private:
  struct State;
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  ElasticSampler& sampler);
  void keep_optimizer(const std::function<CheckpointPart()>& part);

  std::unique_ptr<State> state_;
};

}  // namespace brigade
