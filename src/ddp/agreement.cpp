// Finds out whether all ranks have the same model and options, before any tensor moves, and
// later whether their replicas still have the same bits.
#include "ddp/core_state.h"
#include "engine/bucket_layout.h"
#include "engine/replica_hashes.h"

namespace brigade {
namespace {

// Each line names a thing and lists all of it that must be equal.
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
  // A rank that refuses reports it here, so that the others need not wait for it.
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
  group.check_same("models or options", describe(model, options),
                   "build the same model on every rank, and wrap it with the same options");
}

}  // namespace brigade

// The check that the replicas stay equal.

namespace brigade {
namespace {

// Collective. Returns every rank's numbers, by rank.
std::vector<std::vector<int64_t>> gather(c10d::ProcessGroup& group,
                                         const at::Device& device,
                                         const std::vector<int64_t>& mine) {
  const at::Tensor own = at::tensor(mine, at::kLong).to(device);
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group.getSize(); ++rank)
    outputs[0].push_back(at::empty_like(own));
  std::vector<at::Tensor> inputs{own};
  group.allgather(outputs, inputs)->wait();
  std::vector<std::vector<int64_t>> all;
  for (const at::Tensor& output : outputs[0]) {
    const at::Tensor host = output.cpu();
    const auto* numbers = host.const_data_ptr<int64_t>();
    all.emplace_back(numbers, numbers + host.numel());
  }
  return all;
}

}  // namespace

void DdpCore::State::check_replicas() {
  const int64_t every = options.check_replicas_every;
  // A rank that has ended its loop in join() does not come here.
  if (every == 0 || !gradient_sync || joining || group.size() == 1) return;
  if (unchecked_passes++ < every) return;
  unchecked_passes = 1;  // the pass that begins now
  std::vector<at::Tensor> tensors;
  std::vector<std::string> all_names;
  for (const DdpParameter& parameter : model.parameters) {
    tensors.push_back(parameter.tensor);
    all_names.push_back(parameter.name);
  }
  const auto hashes = engine::hash_tensors(tensors);
  const auto wholes = gather(*collectives(), device(), {engine::hash_of(hashes)});
  if (std::equal(wholes.begin() + 1, wholes.end(), wholes.begin())) return;
  throw MismatchError(
      "the replicas have drifted apart within the last " + std::to_string(every) +
      " passes: " +
      engine::describe_drift(all_names, gather(*collectives(), device(), hashes)) +
      ". Something on these ranks changes parameters that the others do not change, or "
      "computes differently; check_replicas_every = 0 where they are meant to differ");
}

}  // namespace brigade
