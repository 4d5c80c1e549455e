// Finds out, before any tensor moves, whether all ranks have the same model and options.
#include "ddp/core_state.h"
#include "engine/agreement/layout.h"

namespace brigade {
namespace {

// One line a thing: what it is called, and all that must be equal.
std::string describe(const DdpModel& model, const DdpOptions& options) {
  std::string lines;
  auto add = [&](const std::string& what, const std::string& value) {
    lines += what + ": " + value + '\n';
  };
  for (const DdpParameter& p : model.parameters) {
    add("parameter " + p.name, engine::describe(p.tensor) +
                                   (p.tensor.requires_grad() ? "" : ", no gradient") +
                                   (p.sparse_gradient ? ", sparse gradient" : ""));
  }
  if (model.buffers && options.broadcast_buffers) {
    for (const auto& [name, tensor] : model.buffers()) {
      add("buffer " + name, engine::describe(tensor));
    }
  }
  auto option = [&](const char* name, auto value) {
    add(c10::str("option ", name), c10::str(value));
  };
  option("bucket_cap_mb", options.bucket_cap_mb.value_or(0));
  option("bucket_cap_mb_list", c10::Join(" ", options.bucket_cap_mb_list));
  std::string buckets;
  for (const auto& bucket : options.first_buckets) buckets += c10::Join(" ", bucket) + "; ";
  option("first_buckets", buckets);
  option("find_unused_parameters", options.find_unused_parameters);
  option("static_graph", options.static_graph);
  option("broadcast_buffers", options.broadcast_buffers);
  option("mixed_precision",
         options.mixed_precision ? options.mixed_precision->describe() : "none");
  option("init_sync", options.init_sync);
  option("skip_all_reduce_unused_params", options.skip_all_reduce_unused_params);
  option("check_replicas_every", options.check_replicas_every);
  option("gradient_as_bucket_view", options.gradient_as_bucket_view);
  option("parameters_to_ignore", c10::Join(" ", options.parameters_to_ignore));
  return lines;
}

std::string list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + c10::Join(", ", ranks);
}

}  // namespace

void verify_same_on_all_ranks(const DdpModel& model, const DdpOptions& options,
                              const ProcessGroup& group, const std::string& refusal) {
  // A rank that refuses says so: the others need not wait for it.
  const auto refusals = group.gather_texts("ddp model", refusal);
  if (!refusal.empty()) return;
  std::vector<int> refused;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!refusals[rank].empty()) refused.push_back(rank);
  }
  if (!refused.empty()) {
    throw MismatchError("DistributedDataParallel was refused on " + list(refused) + ": " +
                        refusals[refused.front()]);
  }
  group.agree_on("models or options", describe(model, options),
                 "build the same model on every rank, and wrap it with the same options");
}

}  // namespace brigade
