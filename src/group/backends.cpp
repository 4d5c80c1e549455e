// Makes connected c10d groups from a backend's name.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <signal.h>

#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "group/network.h"
#include "group/process_group_state.h"
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

// How often a thread that waits for connections checks whether the group was aborted.
constexpr std::chrono::milliseconds kLookAtSwitch{5};
// Connecting may exceed the group's time limit by this, because the errors of its steps, at
// that limit, say more.
constexpr std::chrono::milliseconds kConnectSlack{1000};
// How long a rank that NCCL could not connect waits for the others' errors.
constexpr std::chrono::milliseconds kOthersErrors{5000};
// How long NCCL may take to abort a failed communicator.
constexpr std::chrono::milliseconds kAbortTime{2000};
// The maximum of time limits, so that deadlines do not overflow.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
// NCCL's error where ranks share a GPU.
constexpr const char* kSharedGpu = "Duplicate GPU detected";

// Descriptors that gloo opens for a group besides a connection to each peer, and a few
// spare ones for other threads.
constexpr size_t kDescriptors = 8;

// Larger groups do not exchange their connections' ends.
constexpr int kTellsConnections = 64;

// `endpoints` gets the endpoint at which peers reach this rank and then, each after a
// space, its ends of the connections that it opened.
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

// Gloo writes to closed connections too, and by default that ends the process without an
// error. A program's own handler stays.
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

void connect_nccl(ProcessGroup::State& state, AbortSwitch& unfinished, c10::Device device,
                  std::string& endpoints) {
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  state.group->setBoundDeviceId(device);
  state.group->setBackend(c10::DeviceType::CUDA, Group::BackendType::NCCL,
                          torch_port::make_nccl_backend(prefixed(state, "nccl"), state.rank,
                                                        state.size, state.timeout));
  // CPU tensors get a backend too.
  state.group->setBackend(c10::DeviceType::CPU, Group::BackendType::GLOO,
                          connect_gloo(state, endpoints));
  state.group->setDefaultBackend(Group::BackendType::NCCL);
  unfinished.add(state.group);
  if (state.abort) state.abort->add(state.group);
}

// Runs a first collective. Returns NCCL's error, or an empty text.
std::string try_communicator(const ProcessGroup::State& state, c10::Device device) {
  try {
    const c10::impl::VirtualGuardImpl cuda(device.type());
    // This must not wait for the program's work on its own stream.
    const c10::StreamGuard apart(cuda.getStreamFromGlobalPool(device, false));
    std::vector<at::Tensor> one{at::zeros({1}, device)};
    state.group->allreduce(one)->wait();
    cuda.getStream(device).synchronize();
    return {};
  } catch (const std::exception& error) {
    return base::cause_of(error);
  }
}

// The errors by rank. A rank that has failed waits only briefly for others, which may be
// gone.
std::vector<std::string> errors_of_all(ProcessGroup::State& state,
                                       const std::string& error) {
  try {
    return gather_texts(
        state, "connect NCCL", error,
        error.empty() ? state.timeout : std::min(state.timeout, kOthersErrors));
  } catch (const std::exception&) {
    // If this rank already failed, its own error is more useful than the store's.
    if (error.empty()) throw;
  }
  std::vector<std::string> errors(static_cast<size_t>(state.size));
  errors[static_cast<size_t>(state.rank)] = error;
  return errors;
}

// NCCL connects its ranks in their first collective, and waits without a limit for one that
// dies meanwhile. So the first one is here, under a time limit.
void connect_communicator(ProcessGroup::State& state, c10::Device device) {
  const std::string error = try_communicator(state, device);
  const std::vector<std::string> errors = errors_of_all(state, error);
  for (const std::string& each : errors) {
    // CPU tensors need no NCCL. The first collective of CUDA tensors gives the error again.
    if (!state.abort && each.find(kSharedGpu) != std::string::npos) return;
  }
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    throw RendezvousError("rank " + std::to_string(state.world_ranks[rank]) +
                          ": NCCL cannot connect the ranks: " + errors[rank]);
  }
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
  // A program without CUDA has no CUDA tensors, so CUDA is not loaded for it.
  return torch_port::cuda_is_loaded() && !torch_port::why_no_nccl() ? "nccl" : "gloo";
}

namespace {

// Makes the device of this rank's collectives, if there is one, current on this thread.
std::optional<c10::Device> bind_device(const ProcessGroup::State& state) {
  if (state.backend != "nccl") return std::nullopt;
  return state.device ? torch_port::bind_cuda_device(*state.device)
                      : torch_port::current_cuda_device();
}

void connect_here(ProcessGroup::State& state, AbortSwitch& unfinished,
                  std::optional<c10::Device> device) {
  if (state.size == 1) {
    state.backend = "solo";
    state.group = torch_port::make_solo_group(state.store, state.timeout);
    return;
  }
  ignore_broken_pipes();
  // Python reads it when it imports torch; in a C++ program only this does.
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) c10::initLogging();
  state.group = c10::make_intrusive<Group>(state.store, state.rank, state.size);
  std::string mine;
  if (device) {
    connect_nccl(state, unfinished, *device, mine);
  } else {
    connect_cpu(state, mine);
  }
  // All ranks wait until all are connected: a rank that left its group at once would close
  // connections that its peers still need while they connect.
  auto endpoints = gather_texts(state, "connect", mine, state.timeout);
  if (state.abort) state.abort->add(sockets_of(endpoints, state.rank));
  torch_port::set_endpoints(*state.group->getBackend(c10::DeviceType::CPU),
                            std::move(endpoints));
  if (device) connect_communicator(state, *device);
}

// Runs `work` in a thread that is left behind if nobody waits for it.
std::future<void> detached(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  auto done = task.get_future();
  std::thread(std::move(task)).detach();
  return done;
}

}  // namespace

void connect(const std::shared_ptr<ProcessGroup::State>& state) {
  const auto device = bind_device(*state);
  // A switch for this attempt only: the group's own switch ends other groups too.
  const auto unfinished = std::make_shared<AbortSwitch>();
  if (!state->abort && !(device && state->size > 1))
    return connect_here(*state, *unfinished, device);
  auto connected =
      detached([state, unfinished, device] { connect_here(*state, *unfinished, device); });
  const auto limit = std::min(state->timeout, kLongest) + kConnectSlack;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (connected.wait_for(kLookAtSwitch) != std::future_status::ready) {
    if (state->abort) state->abort->throw_if_aborted();
    if (std::chrono::steady_clock::now() < deadline) continue;
    const std::string why =
        (device ? "NCCL" : "gloo") + std::string(" has not connected the ranks within ") +
        in_seconds(limit) + ": one is gone, stopped, or cannot be reached";
    // This ends the thread, and with it NCCL's communicator.
    detached([unfinished, why] { unfinished->abort(why); }).wait_for(kAbortTime);
    throw RendezvousError(why);
  }
  connected.get();
}

}  // namespace brigade::group
