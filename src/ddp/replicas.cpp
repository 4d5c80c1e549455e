// The check for ranks that drift apart.
#include "engine/agreement/replicas.h"

#include "ddp/core_state.h"

namespace brigade {
namespace {

// Collective. The numbers of every rank, by rank.
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
