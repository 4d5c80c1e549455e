// What a ProcessGroup handle points at. Shared by the files of this folder only.
#pragma once
#include <atomic>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "brigade/process_group.h"
#include "group/abort_switch.h"
#include "torch_port/gloo_backend.h"

namespace brigade {

struct ProcessGroup::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::string backend;
  bool wrapped = false;  // somebody else made the group, and ends it
  std::chrono::milliseconds timeout;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // Which of its host's devices this rank uses, in this group and in those made from it.
  // None: the one that is current when connections are made. Somebody else's group may have
  // any ranks of a host, so that a place in it says nothing.
  std::optional<int> device = 0;
  // By rank: the number that users know it by, the machine it runs on (group/network.h),
  // and the host that it counts to, which may be one of several on the machine.
  std::vector<int> world_ranks{0};
  std::vector<std::string> machines;
  std::vector<std::string> hosts;
  HostLayout layout;
  // Where the groups made from this one listen.
  torch_port::GlooOptions gloo;
  // Of an elastic job's groups; shared by all that are made from one.
  std::shared_ptr<group::AbortSwitch> abort;
  // Counters that are equal on all ranks because the calls that advance them are
  // collective: they make keys and prefixes unique.
  std::atomic<int> groups_made{0};
  std::atomic<int> gathers{0};
  std::atomic<int> names_given{0};
};

namespace group {

// Every rank's text, by rank. Throws TimeoutError that names the ranks that did not come
// within `timeout`, RendezvousError when the store is lost. Leaves no key behind. Rank 0
// returns last: it may host the store, and take it along when it exits.
std::vector<std::string> gather_texts(ProcessGroup::State& state, const std::string& what,
                                      const std::string& mine,
                                      std::chrono::milliseconds timeout);

// Sets state->group, to a c10d group of state->backend over state->store, and makes its
// device the current one of the calling thread. Collective. Neither gloo nor NCCL can be
// interrupted while they connect, and a peer that dies meanwhile is waited for, by NCCL for
// ever. So where there is a switch, and with NCCL, a thread of its own connects: it is left
// behind when the switch is thrown, or the group's time limit is over; then what it has
// connected over NCCL is aborted.
void connect(const std::shared_ptr<ProcessGroup::State>& state);

// The backend that `asked` ("auto", "gloo", "nccl") means on this machine. Throws
// ConfigError when it is unknown or cannot be used, with the reason.
std::string choose_backend(const std::string& asked);

// "3 s", "0.5 s".
std::string in_seconds(std::chrono::milliseconds time);

}  // namespace group
}  // namespace brigade
