#include "brigade/process_group.h"

#include <ATen/core/Tensor.h>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "group/process_group_state.h"

namespace brigade {
namespace {

// Gloo reads strided tensors as if they were contiguous, and expanded ones out of bounds.
void check_tensor(const char* what, const at::Tensor& tensor) {
  if (!tensor.defined()) throw ConfigError(std::string(what) + ": the tensor is undefined");
  if (!tensor.is_sparse() && !tensor.is_contiguous()) {
    throw ConfigError(c10::str(what, ": a tensor of sizes ", tensor.sizes(),
                               " and strides ", tensor.strides(),
                               "; expected a contiguous one"));
  }
}

template <class Start>
void run(const char* what, ProcessGroup::State& state, Start start) {
  try {
    start()->wait();
  } catch (const std::exception& error) {
    const std::string cause = base::cause_of(error);
    const std::string text = std::string(what) + " on rank " +
                             std::to_string(state.world_ranks[state.rank]) + ": " + cause;
    if (cause.find("imed out") != std::string::npos) throw TimeoutError(text);
    throw Error(text);
  }
}

}  // namespace

ProcessGroup::State::~State() {
  if (backend != "nccl" || wrapped || !group) return;
  try {
    // NCCL wants to be told, or it complains about leaks at exit.
    group->getBackend(c10::DeviceType::CUDA)->shutdown();
  } catch (const std::exception&) {
    // Its connections are gone already; nobody is left to tell.
  }
}

std::string ProcessGroup::unique_name(const std::string& what) const {
  return what + std::to_string(state_->names_given++);
}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return state_->size; }
const std::string& ProcessGroup::backend() const { return state_->backend; }
bool ProcessGroup::works_on_device() const { return state_->backend == "nccl"; }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_->timeout; }
int ProcessGroup::local_rank() const { return state_->local_rank; }
int ProcessGroup::local_size() const { return state_->local_size; }
const HostLayout& ProcessGroup::layout() const { return state_->layout; }
const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const {
  return state_->group;
}
const c10::intrusive_ptr<c10d::Store>& ProcessGroup::store() const { return state_->store; }

std::vector<std::string> ProcessGroup::gather_texts(const std::string& what,
                                                    const std::string& mine) const {
  return group::gather_texts(*state_, what, mine, state_->timeout);
}

void ProcessGroup::barrier(std::optional<std::chrono::milliseconds> timeout) const {
  group::gather_texts(*state_, "barrier", "", timeout.value_or(state_->timeout));
}

void ProcessGroup::all_reduce(at::Tensor tensor) const {
  check_tensor("all_reduce", tensor);
  std::vector<at::Tensor> tensors{std::move(tensor)};
  run("all_reduce", *state_, [&] { return state_->group->allreduce(tensors); });
}

void ProcessGroup::broadcast(at::Tensor tensor, int root) const {
  check_tensor("broadcast", tensor);
  if (root < 0 || root >= state_->size) {
    throw ConfigError("broadcast: root=" + std::to_string(root) +
                      ": expected a rank from 0 to " + std::to_string(state_->size - 1));
  }
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  run("broadcast", *state_, [&] { return state_->group->broadcast(tensors, options); });
}

}  // namespace brigade
