// SPDX-License-Identifier: BSD-3-Clause
// Saves a training run and resumes it, to the last bit on the same number of ranks.
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

// ---- Safetensors files ------------------------------------------------------------------
//
// The format is that of Python's `safetensors`, with checksums added. Nothing in such a
// file is ever executed.

// A file or its content cannot be used. The text has the path, and says whether the file is
// missing, not of this format, truncated, corrupt, or does not fit, or gives the system's
// error. It is valid UTF-8, whatever bytes of the file it quotes.
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

// Returns the whole file, on the CPU. Checks everything first: lengths, bounds, overlaps,
// holes, names, and checksums where the file has them. A file of save_safetensors with any
// one byte changed is refused in either mode. Throws CheckpointError.
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

// The state of one part of a run.
using PartState = NamedState;

// The saved states of a part that loads.
struct SavedPart {
  // A shared part has one state. A per-rank part has this rank's, or, if another number of
  // ranks saved it, all of them, by rank.
  std::vector<PartState> states = {};
  int saved_ranks = 1;
  int ranks = 1;
  int rank = 0;
};

// A named part of a checkpoint. The functions below make parts for objects of brigade and
// torch; a program can add its own.
struct CheckpointPart {
  // Must not be empty or contain '/', and must differ between the parts of a checkpoint.
  std::string name = {};
  // False: the state is equal on all ranks; rank 0's is stored. True: each rank's is
  // stored.
  bool per_rank = false;
  // Called by every rank, in the order of the parts; it may use collectives.
  std::function<PartState()> save = {};
  // Checks everything in `saved`, throws CheckpointError where it does not fit, and changes
  // nothing. The function it returns makes the change; it is called when all parts of all
  // ranks fit, and must not fail.
  std::function<std::function<void()>(SavedPart saved)> load = {};
};

// ---- Parts ----

// Parameters and buffers, as named_parameters() and named_buffers() name them. Names,
// shapes and dtypes must match; the first that differs is named. Give it the wrapped model,
// not DistributedDataParallel: then the checkpoint loads with and without it. The arguments
// of all these functions must outlive the part.
BRIGADE_API CheckpointPart model_part(torch::nn::Module& model, std::string name = "model");
// State and options of a torch::optim Adam, AdamW, SGD, RMSprop or Adagrad, by the names
// that `model` gives its parameters; the groups of parameters must match. Options are
// loaded too: a learning rate that was changed while training comes back. Throws
// ConfigError for another optimizer, or a parameter that is not the model's.
BRIGADE_API CheckpointPart optimizer_part(torch::optim::Optimizer& optimizer,
                                          torch::nn::Module& model,
                                          std::string name = "optimizer");
// The same for an optimizer of brigade::optim, in the backward pass or not: its state for
// each parameter of `model`, and its options.
BRIGADE_API CheckpointPart optimizer_part(optim::Optimizer& optimizer,
                                          torch::nn::Module& model,
                                          std::string name = "optimizer");
// State and options of a ZeroRedundancyOptimizer or the hook "zero", a shard a rank. Any
// number of ranks can load them. Parameters and optimizers must match.
BRIGADE_API CheckpointPart zero_part(optim::ShardedOptimizer& optimizer,
                                     std::string name = "zero");
// The hook's state, a shard a rank; another number of ranks loads combine_states() of it.
// The hook and its options must be those of the run that saved.
BRIGADE_API CheckpointPart hook_part(DdpCore& core, std::string name = "hook");
// The layout of the buckets, which find_checkpoint() gives to DdpOptions::first_buckets.
// Loading does nothing. Saving rebuilds the buckets if the next forward pass would.
BRIGADE_API CheckpointPart bucket_part(DdpCore& core);
// Epoch and position. For another number of ranks the position is computed from the total
// number of samples, rounded down: at most ranks - 1 samples are seen twice. A data loader
// must be made after loading. If torch's loader prefetches, the position is ahead of the
// training loop: use brigade's DataLoader, or get the indices with next().
BRIGADE_API CheckpointPart sampler_part(DistributedSampler& sampler,
                                        std::string name = "sampler");
// The same for a DataLoader (brigade/data.h), which has the training loop's position and
// goes there when it loads. It can load a part of sampler_part(), and the other way round.
BRIGADE_API CheckpointPart data_loader_part(DataLoaderBase& loader,
                                            std::string name = "sampler");
// torch's default generators, of the CPU and of the current CUDA device, a shard a rank.
// Another number of ranks leaves them unchanged.
BRIGADE_API CheckpointPart random_part(std::string name = "random");
// Scale, factors and the count of steps without overflow (brigade/optimizer_in_backward.h);
// equal on all ranks.
BRIGADE_API CheckpointPart scaler_part(GradScaler& scaler, std::string name = "scaler");
// The program's own tensors and values, shared or per rank; loading replaces the content of
// `state`.
BRIGADE_API CheckpointPart user_part(PartState& state, bool per_rank = false,
                                     std::string name = "user");

// The step of an averager, or of LocalSGD; hook_part() stores LocalSGD's hook. Between two
// means the ranks' parameters and optimizers differ: store these per_rank().
BRIGADE_API CheckpointPart averager_part(ModelAverager& averager,
                                         std::string name = "averager");
BRIGADE_API CheckpointPart local_sgd_part(optim::LocalSGD& local,
                                          std::string name = "local_sgd");
// A shared part with the global parameters, velocity and steps, and a per-rank part,
// NAME.rank, with the rank's parameters and its hook's state; another number of ranks loads
// their mean. Give them after model_part; the inner optimizer goes per_rank().
BRIGADE_API std::vector<CheckpointPart> diloco_parts(optim::DiLoCo& diloco,
                                                     std::string name = "diloco");
// The same part, stored for each rank. If another number of ranks loads it, all load rank
// 0's.
BRIGADE_API CheckpointPart per_rank(CheckpointPart part);

// ---- Checkpoints ----

struct CheckpointInfo {
  int64_t step = 0;
  int ranks = 1;                        // number of ranks that saved it
  std::vector<std::string> parts = {};  // their names
  // For DdpOptions::first_buckets; empty without bucket_part.
  std::vector<std::vector<std::string>> buckets = {};
};

// The checkpoint in `folder`, if there is one. Not collective; reads no tensors. Throws
// CheckpointError if it cannot be used.
BRIGADE_API std::optional<CheckpointInfo> find_checkpoint(const std::string& folder);

// Collective, between two steps. Replaces the checkpoint in `folder`, which all ranks must
// see and which is made if it is missing. After a kill at any moment, a full disk or an
// error, the previous checkpoint is still whole. Returns when the new one is on the disk;
// otherwise throws CheckpointError on every rank, with the first failing rank's reason.
// After a TimeoutError either of the two may be there, whole.
//
// The process of rank 0 locks the folder until it ends. Throws CheckpointError if another
// job has locked it.
//
// The files are SET.shared, SET.rank-N and, renamed into place last, manifest.safetensors,
// which has their names and checksums. Files of older sets are removed; all other files
// stay.
BRIGADE_API void save_checkpoint(const std::string& folder, int64_t step,
                                 const ProcessGroup& group,
                                 std::span<const CheckpointPart> parts);

// Collective. Loads `parts` from the checkpoint in `folder` and returns its step; without a
// checkpoint, changes nothing and returns none. Other parts of the checkpoint are ignored;
// a part that it does not have is an error. Throws CheckpointError on every rank, with the
// first failing rank's reason, if anything is missing, truncated, corrupt or does not fit
// on any rank; then nothing has changed on any.
BRIGADE_API std::optional<int64_t> load_checkpoint(const std::string& folder,
                                                   const ProcessGroup& group,
                                                   std::span<const CheckpointPart> parts);

}  // namespace brigade
