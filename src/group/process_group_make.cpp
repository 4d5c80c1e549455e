// How groups come about: from the environment, from another group, from somebody else's.
#include <numeric>
#include <sstream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "brigade/error.h"
#include "group/environment.h"
#include "group/generation.h"
#include "group/host_layout.h"
#include "group/network.h"
#include "group/process_group_state.h"
#include "group/rendezvous.h"
#include "group/store/timed_store.h"

namespace brigade {
namespace {

using group::Environment;
using State = ProcessGroup::State;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::chrono::seconds kDefaultTimeout{300};
// A peer that dies while the ranks connect must not hold the others for long.
constexpr std::chrono::milliseconds kConnectGeneration{10'000};

StorePtr prefixed(const std::string& prefix, StorePtr store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::chrono::milliseconds choose_timeout(const ProcessGroupOptions& options,
                                         const group::Lookup& lookup) {
  if (!options.timeout) return group::read_timeout(lookup).value_or(kDefaultTimeout);
  if (options.timeout->count() <= 0) {
    throw ConfigError("timeout=" + std::to_string(options.timeout->count()) +
                      " ms: expected more than 0");
  }
  return *options.timeout;
}

// What every rank tells the others when they first meet.
struct Introduction {
  std::string backend, machine, node;

  static Introduction of_this(const State& state, std::optional<int> node) {
    return {state.backend, group::host_identity(), node ? std::to_string(*node) : ""};
  }
  std::string text() const { return backend + "\n" + machine + "\n" + node; }
  static Introduction parse(const std::string& text) {
    Introduction found;
    std::istringstream lines(text);
    std::getline(lines, found.backend);
    std::getline(lines, found.machine);
    std::getline(lines, found.node);
    return found;
  }
  // Two launchers on one machine are two hosts: they were asked to be.
  std::string host() const { return machine + "#" + node; }
};

void check_equal(const std::string& what, int rank, const std::string& first,
                 const std::string& other) {
  if (first == other) return;
  throw MismatchError("the ranks disagree about the " + what + ": rank 0 has " + first +
                      ", rank " + std::to_string(rank) + " has " + other);
}

// Two processes with one rank would read each other's mail.
void claim_rank(State& state) {
  const std::string rank = std::to_string(state.rank);
  if (state.store->add("claim/" + rank, 1) > 1) {
    throw RendezvousError("rank " + rank +
                          " came twice: expected one process with RANK=" + rank);
  }
}

// Where the ranks are, and this one's place among those of its host.
void find_places(State& state) {
  state.layout = group::make_layout(state.hosts, state.rank);
  state.local_rank = state.layout.place;
  state.local_size = static_cast<int>(state.layout.host_ranks().size());
}

void introduce(State& state, const std::string& what, std::optional<int> node) {
  const Introduction mine = Introduction::of_this(state, node);
  auto texts = group::gather_texts(state, what, mine.text(), state.timeout);
  const Introduction first = Introduction::parse(texts[0]);
  for (int rank = 0; rank < state.size; ++rank) {
    const Introduction other = Introduction::parse(texts[rank]);
    check_equal("backend", rank, first.backend, other.backend);
    state.machines.push_back(other.machine);
    state.hosts.push_back(other.host());
  }
  find_places(state);
}

bool on_one_machine(const State& state) {
  return std::ranges::all_of(state.machines, [&](const std::string& machine) {
    return machine == state.machines[0];
  });
}

// `master`: the store's host.
torch_port::GlooOptions choose_gloo(const State& state, const std::string& interface,
                                    const std::string& master) {
  torch_port::GlooOptions gloo;
  gloo.timeout = state.timeout;
  auto named = group::process_environment()("GLOO_SOCKET_IFNAME");
  gloo.interface = !interface.empty() ? interface : named.value_or("");
  if (!gloo.interface.empty()) {
    gloo.address.clear();
  } else if (!on_one_machine(state)) {
    gloo.address = group::outward_address(master);
  }
  return gloo;
}

ProcessGroup make_alone(const Environment& environment, std::chrono::milliseconds timeout) {
  auto state = std::make_shared<State>();
  state->store = c10::make_intrusive<c10d::HashStore>();
  state->timeout = timeout;
  state->machines = state->hosts = {group::host_identity()};
  state->gloo.timeout = timeout;
  state->local_rank = environment.local_rank.value_or(0);
  state->device = state->local_rank;
  state->local_size = environment.local_world_size.value_or(1);
  group::connect(state);
  return ProcessGroup(std::move(state));
}

// A group of `members` (ranks of `parent`, this one among them) under a prefix of its own.
ProcessGroup make_child(const State& parent, const std::string& prefix,
                        const std::vector<int>& members) {
  auto state = std::make_shared<State>();
  state->store = prefixed(prefix, parent.store);
  state->backend = parent.backend;
  state->timeout = parent.timeout;
  state->gloo = parent.gloo;
  state->abort = parent.abort;
  state->size = static_cast<int>(members.size());
  state->world_ranks.clear();
  for (int member : members) {
    if (member == parent.rank) state->rank = static_cast<int>(state->world_ranks.size());
    state->world_ranks.push_back(parent.world_ranks[member]);
    state->machines.push_back(parent.machines[member]);
    state->hosts.push_back(parent.hosts[member]);
  }
  find_places(*state);
  state->device = parent.device;
  // Gloo itself would not say who is missing.
  group::gather_texts(*state, prefix, "", state->timeout);
  group::connect(state);
  return ProcessGroup(std::move(state));
}

std::string joined(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

void check_members(const State& state, const std::vector<int>& ranks) {
  if (ranks.empty()) throw ConfigError("new_group: no ranks; expected at least one");
  std::vector<bool> seen(static_cast<size_t>(state.size));
  for (int rank : ranks) {
    if (rank < 0 || rank >= state.size) {
      throw ConfigError("new_group: rank " + std::to_string(rank) + ": expected 0 to " +
                        std::to_string(state.size - 1));
    }
    if (seen[rank]) {
      throw ConfigError("new_group: rank " + std::to_string(rank) +
                        " twice: expected each at most once");
    }
    seen[rank] = true;
  }
}

// torch.distributed's groups of several backends ("cpu:gloo,cuda:nccl") have no name of
// their own.
std::string backend_name(c10d::ProcessGroup& group) {
  std::string name = group.getBackendName();
  if (name != "undefined" && name != "custom") return name;
  for (c10::DeviceType type : {c10::DeviceType::CUDA, c10::DeviceType::CPU}) {
    for (const c10::Device& device : group.getDeviceTypes()) {
      if (device.type() == type) return group.getBackend(type)->getBackendName();
    }
  }
  return name;
}

std::chrono::milliseconds timeout_of(c10d::ProcessGroup& group) {
  try {
    for (const c10::Device& device : group.getDeviceTypes()) {
      return group.getBackend(device.type())->getBackendOptions()->timeout;
    }
  } catch (const c10::Error&) {
    // Not every backend has options.
  }
  return kDefaultTimeout;
}

// The host of the TCP store underneath, if it is one.
std::string master_of(const StorePtr& store) {
  auto* prefix = dynamic_cast<c10d::PrefixStore*>(store.get());
  StorePtr inner = prefix ? prefix->getUnderlyingNonPrefixStore() : store;
  auto* tcp = dynamic_cast<c10d::TCPStore*>(inner.get());
  return tcp ? tcp->getHost() : "";
}

void check_can_make_groups(const State& state) {
  if (state.size > 1 && !state.store) {
    throw ConfigError("a group of backend '" + state.backend +
                      "' was made without a store: no group can be made from it");
  }
  if (state.backend != "gloo" && state.backend != "nccl" && state.backend != "solo") {
    throw ConfigError("cannot make a group of backend '" + state.backend +
                      "': expected gloo or nccl");
  }
}

}  // namespace

ProcessGroup init_process_group(const ProcessGroupOptions& options) {
  // Numbers the calls, so that a second group of this process does not meet the first one's
  // keys; equal on all ranks, because the call is collective.
  static std::atomic<int> calls{0};
  const group::Lookup lookup = group::process_environment();
  const Environment environment =
      group::read_environment(lookup, options.rank, options.world_size);
  const auto timeout = choose_timeout(options, lookup);
  if (environment.world_size == 1) {
    // Any known name will do: nothing is sent.
    if (options.backend != "nccl") group::choose_backend(options.backend);
    return make_alone(environment, timeout);
  }
  auto state = std::make_shared<State>();
  state->backend = group::choose_backend(options.backend);
  state->timeout = timeout;
  state->rank = environment.rank;
  state->size = environment.world_size;
  state->world_ranks = first_ranks(state->size);
  auto point = group::rendezvous(options.init_method, lookup, environment, timeout);
  state->store = prefixed("init_" + std::to_string(calls++), point.store);
  claim_rank(*state);
  introduce(*state, "rendezvous", options.node ? options.node : environment.node);
  if (!options.node) {
    state->local_rank = environment.local_rank.value_or(state->local_rank);
    state->local_size = environment.local_world_size.value_or(state->local_size);
  }
  state->device = state->local_rank;
  state->gloo = choose_gloo(*state, options.interface, point.host);
  group::connect(state);
  return ProcessGroup(std::move(state));
}

ProcessGroup group::join_generation(const GenerationPlan& plan) {
  auto state = std::make_shared<State>();
  state->abort = plan.abort;
  state->store = c10::make_intrusive<AbortableStore>(plan.prefix, plan.store, plan.abort);
  state->timeout = plan.timeout;
  state->rank = plan.rank;
  state->size = plan.size;
  state->world_ranks = first_ranks(plan.size);
  state->backend = choose_backend(plan.backend);
  introduce(*state, "generation", read_node(process_environment()));
  state->device = plan.device;
  state->gloo = choose_gloo(*state, "", plan.host);
  state->gloo.connect_timeout = std::min(plan.timeout, kConnectGeneration);
  state->gloo.works = plan.abort->works();
  group::connect(state);
  return ProcessGroup(std::move(state));
}

ProcessGroup ProcessGroup::wrap(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  if (!group) throw ConfigError("ProcessGroup::wrap: expected a group, got none");
  auto state = std::make_shared<State>();
  state->rank = group->getRank();
  state->size = group->getSize();
  state->backend = backend_name(*group);
  state->timeout = timeout_of(*group);
  state->world_ranks = first_ranks(state->size);
  if (StorePtr store = group->getStore()) {
    auto watchdog = std::make_shared<group::Watchdog>(
        "rank " + std::to_string(state->rank) + ": the store of the wrapped group",
        state->timeout);
    // A connection of its own. One that several groups share would let two of them wait for
    // each other: on one rank the first holds it in a wait(), on another the second.
    const StorePtr watched =
        c10::make_intrusive<group::TimedStore>(store, std::move(watchdog))->clone();
    // Each rank counts its own wraps, so that two of them do not meet each other's keys.
    const auto wraps = watched->add("brigade/wraps/" + std::to_string(state->rank), 1);
    state->store = prefixed("brigade/wrap_" + std::to_string(wraps), watched);
    introduce(*state, "wrap", group::read_node(group::process_environment()));
    state->gloo = choose_gloo(*state, "", master_of(store));
  } else {  // nobody can tell: as if on one host
    state->machines = state->hosts =
        std::vector<std::string>(static_cast<size_t>(state->size));
    find_places(*state);
  }
  state->device = std::nullopt;
  state->group = std::move(group);
  state->wrapped = true;
  return ProcessGroup(std::move(state));
}

ProcessGroup ProcessGroup::new_group(const std::vector<int>& ranks,
                                     const std::string& name) const {
  check_can_make_groups(*state_);
  check_members(*state_, ranks);
  const std::string id =
      name.empty() ? std::to_string(state_->groups_made++) : "(" + name + ")";
  // The members are part of the prefix: ranks that disagree about them do not meet.
  const std::string prefix = "group_" + id + "(" + joined(ranks) + ")";
  if (std::find(ranks.begin(), ranks.end(), state_->rank) == ranks.end()) return {};
  return make_child(*state_, prefix, ranks);
}

ProcessGroup ProcessGroup::new_subgroups(std::optional<int> size) const {
  check_can_make_groups(*state_);
  if (size && (*size < 1 || state_->size % *size != 0)) {
    throw ConfigError("new_subgroups: size=" + std::to_string(*size) +
                      ": expected a divisor of " + std::to_string(state_->size) +
                      ", the number of ranks");
  }
  std::vector<int> members;
  for (int rank = 0; rank < state_->size; ++rank) {
    const bool mine = size ? rank / *size == state_->rank / *size
                           : state_->hosts[rank] == state_->hosts[state_->rank];
    if (mine) members.push_back(rank);
  }
  return make_child(
      *state_,
      "subgroup_" + std::to_string(state_->groups_made++) + "(" + joined(members) + ")",
      members);
}

ProcessGroup ProcessGroup::duplicate(const std::string& name) const {
  check_can_make_groups(*state_);
  const std::string id =
      name.empty() ? std::to_string(state_->groups_made++) : "(" + name + ")";
  return make_child(*state_, "duplicate_" + id, first_ranks(state_->size));
}

}  // namespace brigade
