// The state behind a ProcessGroup handle. Only files of this folder use it.
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
  bool wrapped = false;  // the group was made elsewhere, and is ended there
  std::chrono::milliseconds timeout;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  // The number of this rank's device on its host, for this group and those made from it.
  // None: the one that is current when connections are made, as for a wrapped group, which
  // may have any ranks of a host, so that a place in it means nothing.
  std::optional<int> device = 0;
  // For each rank: its number for users, its machine (group/network.h), and its host, which
  // may be one of several on the machine.
  std::vector<int> world_ranks{0};
  std::vector<std::string> machines;
  std::vector<std::string> hosts;
  HostLayout layout;
  // Options of groups made from this one: where they listen.
  torch_port::GlooOptions gloo;
  // For an elastic job's groups; shared by all groups made from one.
  std::shared_ptr<group::AbortSwitch> abort;
  // Counters that make keys and prefixes unique. They are equal on all ranks because the
  // calls that advance them are collective.
  std::atomic<int> groups_made{0};
  std::atomic<int> gathers{0};
  std::atomic<int> names_given{0};
};

namespace group {

// Every rank's text, by rank. Throws a TimeoutError that names the ranks that did not call
// it within `timeout`, RendezvousError when the store is lost. Leaves no key behind. Rank 0
// returns last, because it may host the store, which ends when it exits.
std::vector<std::string> gather_texts(ProcessGroup::State& state, const std::string& what,
                                      const std::string& mine,
                                      std::chrono::milliseconds timeout);

// Sets state->group, to a c10d group of state->backend over state->store, and makes its
// device the current one of the calling thread. Collective. Neither gloo nor NCCL can be
// interrupted while they connect, and both wait for a peer that dies meanwhile, NCCL for
// ever. So with a switch, and with NCCL, a separate thread connects. When the switch
// aborts, or the group's time limit is over, that thread is left behind and its NCCL
// communicators are aborted.
void connect(const std::shared_ptr<ProcessGroup::State>& state);

// The backend for `asked` ("auto", "gloo", "nccl") on this machine. Throws ConfigError,
// with the reason, if it is unknown or cannot be used.
std::string choose_backend(const std::string& asked);

// "3 s", "0.5 s".
std::string in_seconds(std::chrono::milliseconds time);

}  // namespace group
}  // namespace brigade
