// SPDX-License-Identifier: BSD-3-Clause
// Saves a training run and takes it up again, to the last bit on the same number of ranks.
//
//   brigade::DdpOptions options;
//   const auto saved = brigade::find_checkpoint("run");
//   if (saved) options.first_buckets = saved->buckets;
//   brigade::DistributedDataParallel ddp(net, group, options);
//   ddp->set_hook(brigade::make_hook("powersgd:rank=2"));
//   torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
//
//   const std::vector<brigade::CheckpointPart> parts{
//       brigade::model_part(*net), brigade::optimizer_part(optimizer, *net),
//       brigade::hook_part(ddp->core()), brigade::bucket_part(ddp->core()),
//       brigade::sampler_part(sampler), brigade::random_part()};
//   int64_t step = brigade::load_checkpoint("run", group, parts).value_or(0);
//   for (; step < steps; ++step) {
//     train(step);
//     if ((step + 1) % 100 == 0) brigade::save_checkpoint("run", step + 1, group, parts);
//   }
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/named_state.h"
#include "brigade/process_group.h"

namespace brigade {

// ---- safetensors ------------------------------------------------------------------------
//
// Tensors in files: the safetensors format, as Python's `safetensors` reads and writes it,
// with checksums. Nothing in such a file is ever executed.

// A file or its content cannot be used. The text has the path, and says whether the file is
// missing, not of this format, truncated or corrupt, does not fit, or what the system
// refused. It is valid UTF-8, whatever bytes of the file it quotes.
class BRIGADE_API CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what);
};

struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors = {};
  std::map<std::string, std::string> metadata = {};
};

enum class Checksums : std::uint8_t {
  if_present,  // also files that other programs wrote
  required,    // only files that save_safetensors wrote
};

// Writes PATH.partial, flushes it to the disk and renames it to PATH. At any moment, also
// after a crash, PATH is the whole old file or the whole new one. Two writers must not
// write the same path at once.
//
// Tensors may have any device and layout in memory, and every dtype of the format except
// packed 4-bit floats. They are stored dense in row-major order. Throws ConfigError for a
// tensor, a name or metadata that the format cannot hold ("brigade.checksum" and
// "brigade.format" are reserved), and CheckpointError if the system refuses; PATH is then
// as it was.
BRIGADE_API void save_safetensors(const std::string& path, const SafetensorsFile& content);

// The whole file, on the CPU. Checks everything first: lengths, bounds, overlaps, holes,
// names, and checksums where the file has them. A file of save_safetensors in which any one
// byte was changed is refused in either mode. Throws CheckpointError.
BRIGADE_API SafetensorsFile load_safetensors(const std::string& path,
                                             Checksums checksums = Checksums::if_present);

class DataLoaderBase;
class DistributedSampler;
class GradScaler;
class ModelAverager;
namespace optim {
class DiLoCo;
class LocalSGD;
class Optimizer;
class ShardedOptimizer;
}  // namespace optim

// What one part of a run stores.
using PartState = NamedState;

// What is there when a part loads.
struct SavedPart {
  // A shared part: its one state. A part with a shard a rank: this rank's own, or, at
  // another number of ranks than it was saved with, all of them, by rank.
  std::vector<PartState> states = {};
  int saved_ranks = 1;
  int ranks = 1;
  int rank = 0;
};

// Something that a checkpoint holds, by name. Anything can be one: the functions below make
// those of brigade and torch, and a program adds its own.
struct CheckpointPart {
  // Not empty, without '/', different for each part of a checkpoint.
  std::string name = {};
  // False: equal on all ranks; rank 0's is stored. True: each rank's own is stored.
  bool per_rank = false;
  // Called by every rank, in the order of the parts; it may use collectives.
  std::function<PartState()> save = {};
  // Looks at everything that is in `saved`, throws CheckpointError where it does not fit,
  // and changes nothing. What it returns makes the change; it is called when all parts of
  // all ranks have found that theirs fit, and must not fail.
  std::function<std::function<void()>(SavedPart saved)> load = {};
};

// ---- parts ----

// Parameters and buffers, as named_parameters() and named_buffers() name them. Names,
// shapes and dtypes must match; the first that differs is named. Give it the wrapped model,
// not DistributedDataParallel: then the checkpoint loads with and without it. All objects
// given to these functions must outlive the part.
BRIGADE_API CheckpointPart model_part(torch::nn::Module& model, std::string name = "model");
// State and options of a torch::optim Adam, AdamW, SGD, RMSprop or Adagrad, by the names
// that `model` gives its parameters; the groups of parameters must match. Options are
// loaded too: a learning rate that was changed while training comes back. Throws
// ConfigError for another optimizer, or a parameter that is not the model's.
BRIGADE_API CheckpointPart optimizer_part(torch::optim::Optimizer& optimizer,
                                          torch::nn::Module& model,
                                          std::string name = "optimizer");
// The same of one of brigade/optim, whether it steps in the backward pass or by hand: what
// it keeps for each parameter of `model`, and its options.
BRIGADE_API CheckpointPart optimizer_part(optim::Optimizer& optimizer,
                                          torch::nn::Module& model,
                                          std::string name = "optimizer");
// A ZeroRedundancyOptimizer or the hook "zero": state and options, a shard a rank, whatever
// the number of ranks that loads. Parameters and optimizers must match.
BRIGADE_API CheckpointPart zero_part(optim::ShardedOptimizer& optimizer,
                                     std::string name = "zero");
// What the hook keeps, a shard a rank; at another number of ranks combine_states() of it.
// The hook and its options must be those of the run that saved.
BRIGADE_API CheckpointPart hook_part(DdpCore& core, std::string name = "hook");
// The layout of the buckets, which find_checkpoint() gives to DdpOptions::first_buckets.
// Loading does nothing. Saving makes the buckets anew if the next forward pass would.
BRIGADE_API CheckpointPart bucket_part(DdpCore& core);
// Epoch and position. At another number of ranks the position is that after as many samples
// in all, rounded down: at most ranks - 1 samples are seen twice. A data loader must be
// made after loading. Where a loader of torch's prefetches, the position is ahead of the
// training loop: use brigade's DataLoader, or draw the indices with next().
BRIGADE_API CheckpointPart sampler_part(DistributedSampler& sampler,
                                        std::string name = "sampler");
// The same of a DataLoader (brigade/data.h), whose place is the training loop's: it
// goes there itself. A part of sampler_part() can be loaded too, and the other way round.
BRIGADE_API CheckpointPart data_loader_part(DataLoaderBase& loader,
                                            std::string name = "sampler");
// torch's default generators, of the CPU and of the current CUDA device, a shard a rank. At
// another number of ranks they stay as they are.
BRIGADE_API CheckpointPart random_part(std::string name = "random");
// Scale, factors and the count of steps without overflow (brigade/optimizer_in_backward.h);
// equal on all ranks.
BRIGADE_API CheckpointPart scaler_part(GradScaler& scaler, std::string name = "scaler");
// The program's own tensors and values, equal on all ranks or each rank its own; loading
// replaces the content of `state`.
BRIGADE_API CheckpointPart user_part(PartState& state, bool per_rank = false,
                                     std::string name = "user");

// The step of an averager, or of LocalSGD, whose hook hook_part() stores. Between two means
// the ranks' parameters and optimizers differ: store these per_rank().
BRIGADE_API CheckpointPart averager_part(ModelAverager& averager,
                                         std::string name = "averager");
BRIGADE_API CheckpointPart local_sgd_part(optim::LocalSGD& local,
                                          std::string name = "local_sgd");
// A shared part with the global parameters, velocity and steps, and a part a rank,
// NAME.rank, with its own parameters and what the hook keeps; at another number of ranks
// the mean of these. Give them after model_part; the inner optimizer goes per_rank().
BRIGADE_API std::vector<CheckpointPart> diloco_parts(optim::DiLoCo& diloco,
                                                     std::string name = "diloco");
// The same part, each rank's own stored. At another number of ranks all load rank 0's.
BRIGADE_API CheckpointPart per_rank(CheckpointPart part);

// ---- checkpoints ----

struct CheckpointInfo {
  int64_t step = 0;
  int ranks = 1;                        // that saved it
  std::vector<std::string> parts = {};  // their names
  // For DdpOptions::first_buckets; empty without bucket_part.
  std::vector<std::vector<std::string>> buckets = {};
};

// The checkpoint in `folder`; none when there is none. Not collective; reads no tensors.
// Throws CheckpointError when there is something that cannot be used.
BRIGADE_API std::optional<CheckpointInfo> find_checkpoint(const std::string& folder);

// Collective, between two steps. Replaces the checkpoint in `folder`, which is made if it
// is missing and which all ranks must see. A kill at any moment, a full disk or an error
// leaves the one before, whole. Returns when the new one is there for good; throws
// CheckpointError on every rank, with the first failing rank's reason, when it is not.
// After a TimeoutError either of the two may be there, whole.
//
// The process of rank 0 locks the folder until it ends. Throws CheckpointError when another
// job has it.
//
// Files: manifest.safetensors, renamed into place last, which names the others, SET.shared
// and SET.rank-N, with their checksums. Other files in the folder stay; those of older sets
// go.
BRIGADE_API void save_checkpoint(const std::string& folder, int64_t step,
                                 const ProcessGroup& group,
                                 std::span<const CheckpointPart> parts);

// Collective. Loads `parts` from the checkpoint in `folder` and gives its step; none, and
// nothing changed, when there is none. Parts of the checkpoint that were not asked for are
// passed over; one asked for that it does not have is an error. Throws CheckpointError on
// every rank, with the first failing rank's reason, when anything is missing, truncated,
// corrupt or does not fit on any rank; then nothing has changed on any.
BRIGADE_API std::optional<int64_t> load_checkpoint(const std::string& folder,
                                                   const ProcessGroup& group,
                                                   std::span<const CheckpointPart> parts);

}  // namespace brigade
