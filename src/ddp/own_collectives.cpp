// The collectives of a model that do not carry gradients.
#include "base/exception_text.h"
#include "ddp/core_state.h"
#include "torch_port/typed_wait.h"

namespace brigade {
namespace {

constexpr size_t kBroadcastBytes = size_t{250} << 20;

std::vector<at::Tensor> tensors_of(const NamedBuffers& buffers) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : buffers) tensors.push_back(tensor.detach());
  return tensors;
}

}  // namespace

void throw_ours(const char* what, const ProcessGroup& group, const c10::Error& error) {
  base::Cause cause = torch_port::failure_of(error, *group.c10d());
  cause.text = "DistributedDataParallel: " + std::string(what) + " on rank " +
               std::to_string(group.rank()) + ": " + base::cause_of(error);
  if (cause.rank) cause.rank = group.number_in_job(*cause.rank);
  std::rethrow_exception(base::make_error(cause));
}

void DdpCore::State::enter(ProcessGroup entered) {
  group = std::move(entered);
  watched = engine::TimedGroup::make(group);
}

const c10::intrusive_ptr<c10d::ProcessGroup>& DdpCore::State::collectives() const {
  return watched ? watched->c10d() : group.c10d();
}

void DdpCore::State::broadcast_model(int root) const {
  std::vector<at::Tensor> tensors;
  for (const DdpParameter& parameter : model.parameters) {
    tensors.push_back(parameter.tensor.detach());
  }
  if (options.broadcast_buffers && model.buffers) {
    auto buffers = tensors_of(model.buffers());
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  }
  try {
    c10d::broadcast_coalesced(collectives(), tensors, kBroadcastBytes, root);
  } catch (const c10::Error& error) {
    throw_ours("the broadcast of the model", group, error);
  }
}

void DdpCore::State::broadcast_buffers(int root) const {
  at::NoGradGuard no_grad;
  c10d::broadcast_coalesced(collectives(), tensors_of(model.buffers()), kBroadcastBytes,
                            root);
}

}  // namespace brigade
