// From a backend's name to connected c10d groups.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <signal.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "group/network.h"
#include "group/process_group_state.h"
#include "group/sockets.h"
#include "torch_port/nccl_backend.h"
#include "torch_port/solo_backend.h"

namespace brigade::group {
namespace {

using Group = c10d::ProcessGroup;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

c10::intrusive_ptr<c10d::Store> prefixed(const ProcessGroup::State& state,
                                         const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, state.store);
}

// What gloo opens for a group besides a connection to each peer, and some for others that
// begin something meanwhile.
constexpr size_t kDescriptors = 8;

// In larger groups it would be much to tell.
constexpr int kTellsConnections = 64;

// `endpoints` gets where this rank's peers reach it and then, in front of each a space, its
// ends of the connections that it has opened.
BackendPtr connect_gloo(const ProcessGroup::State& state, std::string& endpoints) {
  check_descriptors(static_cast<size_t>(state.size) + kDescriptors,
                    "the connections of " + std::to_string(state.size) + " ranks");
  try {
    const bool tells = state.size <= kTellsConnections;
    const auto before = tells ? connections() : std::map<ino_t, std::string>();
    int listener = -1;
    auto backend = torch_port::make_gloo_backend(prefixed(state, "gloo"), state.rank,
                                                 state.size, state.gloo, &listener);
    if (listener < 0) return backend;
    const Address own = own_address(listener);
    const std::string listens_at = endpoint(own.host(), own.port());
    endpoints = listens_at;
    if (!tells) return backend;
    for (const auto& [inode, end] : connections())
      if (!before.contains(inode) && end != listens_at) endpoints += " " + end;
    return backend;
  } catch (const c10::DistNetworkError& error) {
    throw RendezvousError("lost the store while gloo was to connect the ranks: " +
                          base::cause_of(error));
  } catch (const std::exception& error) {
    const auto& gloo = state.gloo;
    throw RendezvousError(
        "gloo cannot connect the ranks, listening on " +
        (gloo.address.empty() ? "interface '" + gloo.interface + "'" : gloo.address) +
        ": " + base::cause_of(error));
  }
}

// Gloo writes to a connection that has gone as to any other; by default that ends the
// process, before anything could say why. A program's own handler stays.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
      now.sa_handler != SIG_DFL) {
    return;
  }
  ::signal(SIGPIPE, SIG_IGN);
}

GroupSockets sockets_of(const std::vector<std::string>& endpoints, int rank) {
  GroupSockets sockets;
  for (const std::string& text : endpoints)
    sockets.peers.push_back(text.substr(0, text.find(' ')));
  sockets.own = sockets.peers[static_cast<size_t>(rank)];
  sockets.peers.erase(sockets.peers.begin() + rank);
  return sockets;
}

void connect_nccl(ProcessGroup::State& state, std::string& endpoints) {
  const c10::Device device = state.device ? torch_port::bind_cuda_device(*state.device)
                                          : torch_port::current_cuda_device();
  state.group->setBoundDeviceId(device);
  state.group->setBackend(c10::DeviceType::CUDA, Group::BackendType::NCCL,
                          torch_port::make_nccl_backend(prefixed(state, "nccl"), state.rank,
                                                        state.size, state.timeout));
  // CPU tensors have a way too.
  state.group->setBackend(c10::DeviceType::CPU, Group::BackendType::GLOO,
                          connect_gloo(state, endpoints));
  state.group->setDefaultBackend(Group::BackendType::NCCL);
  if (state.abort) state.abort->add(state.group);
}

// NCCL connects its ranks in their first collective, and waits without a limit for one that
// dies meanwhile, where nothing can abort it. So a group that may be aborted has its first
// one here, where somebody looks after it.
void connect_communicator(const ProcessGroup::State& state) {
  const c10::Device device = *state.group->getBoundDeviceId();
  const c10::impl::VirtualGuardImpl cuda(device.type());
  cuda.setDevice(device);
  std::vector<at::Tensor> one{at::zeros({1}, device)};
  state.group->allreduce(one)->wait();
  cuda.getStream(device).synchronize();
}

void connect_cpu(ProcessGroup::State& state, std::string& endpoints) {
  auto gloo = connect_gloo(state, endpoints);
  // Gloo takes CUDA tensors too: it stages them through pinned memory.
  state.group->setBackend(c10::DeviceType::CPU, Group::BackendType::GLOO, gloo);
  state.group->setBackend(c10::DeviceType::CUDA, Group::BackendType::GLOO, gloo);
  state.group->setDefaultBackend(Group::BackendType::GLOO);
}

}  // namespace

std::string choose_backend(const std::string& asked) {
  if (asked == "gloo") return asked;
  if (asked == "nccl") {
    if (auto reason = torch_port::why_no_nccl()) {
      throw ConfigError("backend='nccl' cannot be used here: " + *reason);
    }
    return asked;
  }
  if (asked != "auto") {
    throw ConfigError("backend='" + asked + "': expected gloo, nccl or auto");
  }
  // A program without CUDA has no CUDA tensors: do not load it for nothing.
  return torch_port::cuda_is_loaded() && !torch_port::why_no_nccl() ? "nccl" : "gloo";
}

void connect(ProcessGroup::State& state) {
  if (state.size == 1) {
    state.backend = "solo";
    state.group = torch_port::make_solo_group(state.store, state.timeout);
    return;
  }
  ignore_broken_pipes();
  // Which Python reads when it imports torch, and nobody for a C++ program.
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) c10::initLogging();
  state.group = c10::make_intrusive<Group>(state.store, state.rank, state.size);
  std::string mine;
  if (state.backend == "nccl") {
    connect_nccl(state, mine);
  } else {
    connect_cpu(state, mine);
  }
  // Nobody goes on before all are connected: a rank that left its group at once would close
  // connections on which its peers are still waiting for others.
  auto endpoints = gather_texts(state, "connect", mine, state.timeout);
  if (state.abort) state.abort->add(sockets_of(endpoints, state.rank));
  torch_port::set_endpoints(*state.group->getBackend(c10::DeviceType::CPU),
                            std::move(endpoints));
  if (state.abort && state.backend == "nccl") connect_communicator(state);
}

}  // namespace brigade::group
