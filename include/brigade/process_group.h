// SPDX-License-Identifier: BSD-3-Clause
// Process groups: which processes take part, and how a program finds its peers.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/error.h"

namespace at {
class Tensor;
}
namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace brigade {

// The operation of all_reduce and reduce_scatter. mean: floating point only.
enum class Reduce { sum, mean, min, max, product };

struct ProcessGroupOptions {
  // "gloo", "nccl", or "auto": nccl where this program can use CUDA and NCCL, gloo
  // elsewhere.
  std::string backend = "auto";
  // "env://" reads the variables of brigade run, torchrun, SLURM, Open MPI or PMI;
  // "tcp://HOST:PORT" needs rank and world_size, from here or from those variables.
  std::string init_method = "env://";
  // If set, these win over the environment.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // The time limit of everything that waits for other ranks: rendezvous, a barrier, one
  // collective. BRIGADE_TIMEOUT (seconds) changes the default.
  std::optional<std::chrono::milliseconds> timeout = {};
  // The network interface Gloo listens on. Empty: GLOO_SOCKET_IFNAME if set, loopback when
  // all ranks are on one host, else the interface that reaches the master.
  std::string interface = {};
  // The number of this rank's host. Ranks share a host if they have the same number, or
  // none, and reach each other over loopback. None: the launcher's (GROUP_RANK,
  // SLURM_NODEID).
  std::optional<int> node = {};
};

// How the ranks of a group are spread over hosts. Hosts are numbered in the order of their
// first ranks; a rank's place is its number among the ranks of its host.
struct BRIGADE_API HostLayout {
  int host = 0;                              // this rank's
  int place = 0;                             // this rank's
  std::vector<int> host_of{0};               // by rank
  std::vector<std::vector<int>> ranks{{0}};  // by host and place

  int hosts() const { return static_cast<int>(ranks.size()); }
  // The number of places that exist on every host: the ranks of the smallest host.
  int places() const;
  // The ranks of this rank's host.
  const std::vector<int>& host_ranks() const { return ranks[static_cast<size_t>(host)]; }
  // The ranks with this rank's place, by host. Empty if not every host has that place.
  std::vector<int> cross_host_ranks() const;
  // Whether there are several hosts, and one of them has several ranks.
  bool shares_hosts() const { return ranks.size() > 1 && ranks.size() < host_of.size(); }
  // "2 hosts x 4 ranks"; for unequal hosts "2 hosts x 3 of 3 to 4 ranks".
  std::string text() const;
};

// A handle to a group of ranks; copies share the group. Thread-safe except where a function
// says that it is collective: those are called by every rank of the group, in the same
// order.
class BRIGADE_API ProcessGroup {
 public:
  struct State;

  ProcessGroup() = default;  // no group; converts to false
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Collective. Wraps a group made elsewhere, by torch.distributed for instance;
  // gather_texts(), barrier() and the groups made from this one use its store.
  static ProcessGroup wrap(c10::intrusive_ptr<c10d::ProcessGroup> group);
  explicit operator bool() const { return state_ != nullptr; }

  int rank() const;
  int size() const;
  // The number in the job of a rank of this group; errors name ranks by it.
  int number_in_job(int rank) const;
  // "gloo", "nccl" or "solo", a group of one that opens no port. For display only.
  const std::string& backend() const;
  // True: collectives work on device memory, and streams wait for them, not the host
  // (NCCL). False: they work on host memory.
  bool works_on_device() const;
  std::chrono::milliseconds timeout() const;
  // This rank's number among the ranks of its host, and how many there are.
  int local_rank() const;
  int local_size() const;
  const HostLayout& layout() const;

  // Collective. A group of the given ranks of this group, numbered in the order given;
  // ranks that are not in it get an empty handle. A group of one is "solo". With a name,
  // which must differ for each group, only the given ranks need to call it, and several
  // threads may, in any order.
  ProcessGroup new_group(const std::vector<int>& ranks, const std::string& name = "") const;
  // Collective. Splits into groups of `size` consecutive ranks and returns this rank's;
  // without a size, the ranks of one host. Throws ConfigError unless `size` divides the
  // number of ranks.
  ProcessGroup new_subgroups(std::optional<int> size = std::nullopt) const;
  // Collective. A group of the same ranks over new connections, so that its collectives are
  // ordered independently of this group's. With a name, which must differ for each, several
  // threads may call it, in any order.
  ProcessGroup duplicate(const std::string& name = "") const;
  // Collective. A name that starts with `what` and that no other call on this group
  // returns; for keys and duplicates.
  std::string unique_name(const std::string& what) const;

  // Collective. Returns when every rank has called it. The TimeoutError names the ranks
  // that have not.
  void barrier(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;
  // Collective. Every rank's text, by rank, through the store; for small texts. Errors name
  // `what`, which must be equal on all ranks (MismatchError).
  std::vector<std::string> gather_texts(const std::string& what,
                                        const std::string& mine) const;
  // Collective. Throws MismatchError on every rank unless all ranks have the same text. The
  // error shows each rank's first line that differs. Hashes are compared first, so equal
  // texts cost a few bytes, whatever their length. `what` is a plural, "hooks" for
  // instance, and equal on all ranks; `remedy` is the error's last line, and says what to
  // do.
  void check_same(const std::string& what, const std::string& mine,
                  const std::string& remedy) const;
  // ---- tensors: collective, except where noted. Tensors must be contiguous
  // (ConfigError), of the same shape and dtype on all ranks, and, with NCCL, on the rank's
  // device. Each blocks until it is done, with NCCL the current stream only, and throws
  // TimeoutError when the others do not take part in time.

  // In place.
  void all_reduce(at::Tensor tensor, Reduce how = Reduce::sum) const;
  void broadcast(at::Tensor tensor, int root = 0) const;
  // Every rank's tensor, by rank.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) const;
  // The same on rank `root`; nothing on the others.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root = 0) const;
  // Cuts the first dimension into one part for each rank, which must be possible, and
  // returns the reduction of all ranks' part number rank().
  at::Tensor reduce_scatter(const at::Tensor& tensor, Reduce how = Reduce::sum) const;
  // Not collective: rank `to` receives what this rank sends, in order.
  void send(const at::Tensor& tensor, int to) const;
  void receive(at::Tensor tensor, int from) const;

  // ---- numbers: collective; for losses, metrics and decisions. Every rank gets the
  // result.
  double sum(double value) const;
  double mean(double value) const;
  double min(double value) const;
  double max(double value) const;
  // The same for a tensor with one element, such as a loss.
  double mean(const at::Tensor& value) const;
  // Several values in one message.
  std::vector<double> sum(std::vector<double> values) const;
  std::vector<double> mean(std::vector<double> values) const;
  // Whether `mine` is true on one rank, or on every rank: if (group.any(stop)) break;
  bool any(bool mine) const;
  bool all(bool mine) const;

  // ---- rank 0 alone: nobody waits.
  // group.rank0([&] { torch::save(net, "net.pt"); });
  template <class Body>
  void rank0(Body&& body) const {
    if (rank() == 0) std::forward<Body>(body)();
  }
  // printf on rank 0, flushed at once.
  [[gnu::format(printf, 2, 3)]] void print(const char* format, ...) const;

  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const;
  const c10::intrusive_ptr<c10d::Store>& store() const;  // this group's own prefix

 private:
  std::shared_ptr<State> state_;
};

// Collective over all ranks of the job. Makes a group of one if none of the variables is
// set. Throws ConfigError (bad variable or option), RendezvousError (the store cannot be
// hosted or reached, two processes have the same rank), TimeoutError (names the ranks that
// did not come), MismatchError (the ranks differ in world size or backend). Each comes
// within the time limit; where LibTorch's store cannot be interrupted, because its host is
// stopped or silent, the process ends with a report and exit code 1. From then on SIGPIPE
// is ignored, so that a peer that dies is an exception, unless the program has a handler of
// its own or is a group of one.
BRIGADE_API ProcessGroup init_process_group(const ProcessGroupOptions& options = {});

}  // namespace brigade
