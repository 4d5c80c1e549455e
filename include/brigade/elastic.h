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
// Vocabulary. A *generation* is the set of a job's members between two changes of it. When
// a member dies, the others form the next generation: one that has finished the most steps
// sends its state to all, and an unfinished step is tried again. Members differ by one step
// at most, so no more than one step is lost.
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
  // The backend, as in ProcessGroupOptions.
  std::string backend = "auto";
  // How long one collective may take; a member that is silent for longer is ended.
  // BRIGADE_TIMEOUT (seconds) changes the default of 300 s.
  std::optional<std::chrono::milliseconds> timeout = {};
};

// This process's handle to a job. Copies share the job.
class BRIGADE_API ElasticJob {
 public:
  struct State;
  explicit ElasticJob(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // The members of the present generation. In an elastic job it is a group of one until the
  // first ElasticTraining::next(), so that a newcomer can build its model first.
  const ProcessGroup& group() const;
  // Generations count from 0; -1 before the first.
  int generation() const;
  // Whether brigade run --elastic started the job. If not, the group is that of
  // init_process_group() and never changes, and errors of collectives go to the caller.
  bool is_elastic() const;

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// Not collective in an elastic job; otherwise calls init_process_group(). Throws the errors
// of that function.
BRIGADE_API ElasticJob join_job(const ElasticJobOptions& options = {});

struct ElasticSamplerOptions {
  bool shuffle = true;
  // Must be equal on all ranks. The order of an epoch depends on seed + epoch only.
  uint64_t seed = 0;
  int64_t epochs = 1;
};

// Distributes a dataset step by step. It counts the samples that all ranks together have
// consumed, so that the rest of an epoch can be distributed to any number of ranks: every
// sample of an epoch is trained exactly once.
class BRIGADE_API ElasticSampler {
 public:
  // `batch`: the rows of one rank in one step. Throws ConfigError for zeros.
  ElasticSampler(int64_t samples, int64_t batch, const ElasticSamplerOptions& options = {});

  int64_t epoch() const { return epoch_; }
  // Samples of this epoch in finished steps.
  int64_t consumed() const { return consumed_; }
  bool at_end() const { return epoch_ >= options_.epochs; }
  // The number of samples in the next step with this many ranks: batch * ranks; at the end
  // of an epoch the rest, and in the step before that up to ranks - 1 more, so that each
  // rank gets a sample.
  int64_t rows_in_step(int ranks) const;
  // The samples of one rank in the next step. Ranks' numbers of samples differ by one at
  // most. Empty if fewer samples are left than ranks.
  at::Tensor rows(int rank, int ranks) const;
  // Counts the step as done.
  void advance(int ranks);
  // Samples, batch, seed and so on; must be equal on all ranks.
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

// Options of ElasticTraining::train_locally. Equal on all ranks.
struct ElasticLocalSGD {
  // Steps from one mean of the parameters to the next; 1 or more.
  int64_t period = 16;
  // Nesterov's outer step, as in DiLoCo, which uses 0.7 and 0.9. 1 and 0 give the plain
  // mean, local SGD.
  double outer_lr = 1;
  double outer_momentum = 0;
};

// A new generation.
struct ElasticEvent {
  int generation = 0;
  int64_t step = 0;  // finished steps in the state that all members have
  int members = 0;
  // Why the previous generation ended; empty for the first.
  std::string why = {};
  // Time from the moment this rank noticed until it could train again.
  std::chrono::milliseconds lost{0};
  // Bytes of state that were sent, and how long that took within `lost`; 0 if all members
  // had the state.
  int64_t bytes = 0;
  std::chrono::milliseconds transfer{0};
};

// Drives the loop of one model. Not thread-safe. Everything it is given must outlive it.
class BRIGADE_API ElasticTraining {
 public:
  // Not collective. Throws ConfigError for things that cannot continue after a death:
  // optimizers in the backward pass, ZeRO (its shards die with their rank), optimizers
  // without a state that can be saved, a hook with a group of its own. `optimizer` is
  // torch's, or one of brigade::optim, which then steps all parameters that have a
  // gradient.
  template <class M, class Optimizer>
  ElasticTraining(ElasticJob job, DistributedDataParallel<M>& ddp, Optimizer& optimizer,
                  ElasticSampler& sampler)
      : ElasticTraining(std::move(job), ddp->core(), *ddp->module(), optimizer, sampler) {}
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  torch::optim::Optimizer& optimizer, ElasticSampler& sampler);
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  optim::Optimizer& optimizer, ElasticSampler& sampler);
  // Throws ConfigError: ZeRO cannot be used.
  ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                  optim::ShardedOptimizer& optimizer, ElasticSampler& sampler);
  ~ElasticTraining();
  ElasticTraining(const ElasticTraining&) = delete;
  ElasticTraining& operator=(const ElasticTraining&) = delete;

  // Adds other state that is equal on all ranks and that a newcomer needs: a schedule, a
  // mean of parameters, a GradScaler (scaler_part). To be called before the first next(),
  // the same on every rank.
  void keep(CheckpointPart part);
  void keep(std::string name, std::function<PartState()> save,
            std::function<void(const PartState&)> load);
  // Saves a checkpoint in `folder`, which all ranks must see, after every `every`-th step;
  // the first next() loads the one that is there. This covers the death of all members, and
  // launchers that restart all workers after a death (torchrun, brigade run
  // --max-restarts). To be called before the first next(), the same on every rank. Throws
  // ConfigError unless every >= 1.
  void checkpoint(std::string folder, int64_t every);
  // Chooses local SGD, or DiLoCo: gradients are not averaged, and no hook runs; each rank
  // steps its own parameters, and every `period` steps, and at the end, these become their
  // mean over the present members. A survivor of a death keeps its own parameters and
  // optimizer state; a newcomer begins with those of one member. A death loses the dead
  // rank's progress since the last mean, and perhaps the rows of one step of a survivor. To
  // be called before the first next(), the same on every rank. Throws ConfigError for
  // options out of range.
  void train_locally(const ElasticLocalSGD& options);
  // `apply` makes a step in place of optimizer.step(): scaler.step(optimizer), a schedule.
  void on_step(std::function<void()> apply);
  // next() ends after `steps` steps in all, or earlier at the end of the epochs. Every rank
  // must call it with the same number, at the same step.
  void end_after(int64_t steps);
  // `tell` is called for every new generation, this rank's first included.
  void on_generation(std::function<void(const ElasticEvent&)> tell);

  // Collective. The rows that this rank trains on in the next step; none at the end of the
  // last epoch, when all ranks have reached it. Forms the first generation, and a new one
  // when newcomers wait. At the end of an epoch, a rank without samples gets one that
  // another rank also has; its gradients do not count.
  std::optional<at::Tensor> next();
  // Collective. Drops the gradients, calls `pass`, which runs forward and backward, and
  // makes a step of the optimizer. True: the step is done. False: a member was lost; the
  // others have formed the next generation, and next() distributes the rows again.
  // Exceptions of `pass` itself are thrown on.
  bool step(const std::function<void()>& pass);

  // The number of finished steps of all generations.
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
