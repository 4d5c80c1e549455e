#include "brigade/process_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

#include "brigade/error.h"
#include "launch/process_group_state.h"

namespace brigade {

namespace {
int env_int(const char* name, int fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : fallback;
}
ProcessGroup make(const ProcessGroup::State& parent, const std::string& prefix, int rank, int size) {
  auto state = std::make_shared<ProcessGroup::State>();
  state->store = c10::make_intrusive<c10d::PrefixStore>(prefix, parent.store);
  state->backend = parent.backend;
  state->timeout = parent.timeout;
  state->rank = rank;
  state->size = size;
  state->local_rank = parent.local_rank;
  state->local_size = parent.local_size;
  state->gloo = parent.gloo;
  state->group = torch_port::make_gloo_group(c10::make_intrusive<c10d::PrefixStore>("gloo", state->store), rank, size,
                                             state->gloo);
  return ProcessGroup(std::move(state));
}
}  // namespace

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  ProcessGroup::State state;
  state.timeout = options.timeout.value_or(std::chrono::seconds(300));
  state.rank = options.rank.value_or(env_int("RANK", 0));
  state.size = options.world_size.value_or(env_int("WORLD_SIZE", 1));
  state.local_rank = env_int("LOCAL_RANK", state.rank);
  state.local_size = env_int("LOCAL_WORLD_SIZE", state.size);
  state.backend = "gloo";
  state.gloo.timeout = state.timeout;
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(env_int("MASTER_PORT", 0));
  tcp.isServer = !std::getenv("TORCHELASTIC_USE_AGENT_STORE") && state.rank == 0;
  tcp.waitWorkers = false;
  const char* host = std::getenv("MASTER_ADDR");
  state.store = c10::make_intrusive<c10d::TCPStore>(host ? host : "127.0.0.1", tcp);
  return make(state, "brigade", state.rank, state.size);
}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return state_->size; }
const std::string& ProcessGroup::backend() const { return state_->backend; }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_->timeout; }
int ProcessGroup::local_rank() const { return state_->local_rank; }
int ProcessGroup::local_size() const { return state_->local_size; }
const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const { return state_->group; }
const c10::intrusive_ptr<c10d::Store>& ProcessGroup::store() const { return state_->store; }

ProcessGroup ProcessGroup::duplicate(const std::string& name) const {
  return make(*state_, "duplicate/" + (name.empty() ? std::to_string(state_->groups_made++) : name), state_->rank, state_->size);
}

std::vector<std::string> ProcessGroup::exchange(const std::string& what, const std::string& mine) const {
  const std::string key = "exchange/" + std::to_string(state_->exchanges++) + "/" + what + "/";
  state_->store->set(key + std::to_string(state_->rank), mine);
  std::vector<std::string> all;
  for (int rank = 0; rank < state_->size; ++rank) all.push_back(state_->store->get_to_str(key + std::to_string(rank)));
  return all;
}

void ProcessGroup::barrier(std::optional<std::chrono::milliseconds>) const { exchange("barrier", ""); }

void ProcessGroup::all_reduce(at::Tensor tensor) const {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  state_->group->allreduce(tensors)->wait();
}

void ProcessGroup::broadcast(at::Tensor tensor, int root) const {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  state_->group->broadcast(tensors, options)->wait();
}

}  // namespace brigade
