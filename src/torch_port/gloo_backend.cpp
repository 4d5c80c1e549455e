#define USE_C10D_GLOO
#include "torch_port/gloo_backend.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "torch_port/live_works.h"

namespace brigade::torch_port {
namespace {

// Gloo waits this many times its limit for a peer to connect, also if the peer died.
constexpr int kGloosPatience = 5;

// Waits for `limit`, although gloo was given a shorter one because of that.
class StoreWithLimit : public c10d::PrefixStore {
 public:
  StoreWithLimit(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds limit)
      : PrefixStore("connect", std::move(store)), limit_(limit) {}
  void wait(const std::vector<std::string>& keys) override {
    PrefixStore::wait(keys, limit_);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds&) override {
    PrefixStore::wait(keys, limit_);
  }

 private:
  const std::chrono::milliseconds limit_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

// Keyed by inode, because descriptors' numbers are reused at once.
std::map<ino_t, int> listening_sockets() {
  std::map<ino_t, int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t size = sizeof listens;
    struct stat about {};
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens &&
        fstat(fd, &about) == 0)
      found[about.st_ino] = fd;
  }
  return found;
}

std::shared_ptr<::gloo::transport::Device> make_device(const GlooOptions& options,
                                                       int* listener) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto make = [&] {
    return options.address.empty() ? Gloo::createDeviceForInterface(options.interface)
                                   : Gloo::createDeviceForHostname(options.address);
  };
  if (!listener) return make();
  // Makes one device at a time, so that each call finds its own socket. This never waits
  // for other ranks.
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const auto before = listening_sockets();
  auto device = make();
  for (const auto& [inode, fd] : listening_sockets())
    if (!before.contains(inode)) *listener = fd;
  return device;
}

class NamedGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  std::vector<std::string> endpoints;  // by rank; empty: not known
};

// Gloo writes "127.0.0.1:4711" as "[127.0.0.1]:26386", with the port's bytes in network
// order.
std::string as_gloo_writes(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos) return endpoint;
  const std::string host = endpoint.substr(0, colon);
  const int port = std::atoi(endpoint.c_str() + colon + 1);
  return (host.starts_with('[') ? host : "[" + host + "]") + ":" +
         std::to_string(htons(static_cast<std::uint16_t>(port)));
}

bool has_endpoint(const std::string& text, const std::string& endpoint) {
  const std::string written = as_gloo_writes(endpoint);
  const size_t at = text.find(written);
  if (at == std::string::npos) return false;
  const size_t end = at + written.size();
  return end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0;
}

// Makes the collectives that LibTorch and this library use abortable. It is a derived class
// and no wrapper, because LibTorch's Logger casts any backend named gloo to
// ProcessGroupGloo.
class AbortableGloo : public NamedGloo {
 public:
  AbortableGloo(std::shared_ptr<LiveWorks> works,
                const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                c10::intrusive_ptr<Options> options)
      : NamedGloo(store, rank, size, std::move(options)), works_(std::move(works)) {}

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return follow(tensors, ProcessGroupGloo::broadcast(tensors, opts));
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return follow(tensors, ProcessGroupGloo::allreduce(tensors, opts));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return follow(tensors, ProcessGroupGloo::reduce(tensors, opts));
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override {
    return follow(inputs, ProcessGroupGloo::allgather(outputs, inputs, opts));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override {
    return follow({input}, ProcessGroupGloo::_allgather_base(output, input, opts));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override {
    return follow({input}, ProcessGroupGloo::_reduce_scatter_base(output, input, opts));
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<int64_t>& output_counts,
                        std::vector<int64_t>& input_counts,
                        const c10d::AllToAllOptions& opts) override {
    return follow({input}, ProcessGroupGloo::alltoall_base(output, input, output_counts,
                                                           input_counts, opts));
  }

 private:
  // On a device, streams wait for collectives.
  WorkPtr follow(const Tensors& tensors, WorkPtr work) const {
    const bool on_cpu = !tensors.empty() && tensors.front().is_cpu();
    return on_cpu ? works_->follow(std::move(work)) : work;
  }

  const std::shared_ptr<LiveWorks> works_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    const GlooOptions& options,
                                                    int* listener) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto limit =
      options.connect_timeout.count() > 0 ? options.connect_timeout : options.timeout;
  auto gloo =
      Gloo::Options::create(std::max(limit / kGloosPatience, std::chrono::milliseconds(1)));
  gloo->threads = options.threads;
  gloo->devices.push_back(make_device(options, listener));
  auto limited = c10::make_intrusive<StoreWithLimit>(std::move(store), limit);
  c10::intrusive_ptr<Gloo> backend;
  if (options.works) {
    backend = c10::make_intrusive<AbortableGloo>(options.works, limited, rank, size, gloo);
  } else {
    backend = c10::make_intrusive<NamedGloo>(limited, rank, size, gloo);
  }
  backend->setTimeout(options.timeout);
  backend->setSequenceNumberForGroup();
  return backend;
}

void set_endpoints(c10d::Backend& gloo, std::vector<std::string> endpoints) {
  if (auto* named = dynamic_cast<NamedGloo*>(&gloo))
    named->endpoints = std::move(endpoints);
}

std::optional<int> rank_named_in(c10d::ProcessGroup& group, const std::string& text) {
  const auto& devices = group.getDeviceTypes();
  if (std::ranges::find(devices, c10::Device(c10::DeviceType::CPU)) == devices.end())
    return std::nullopt;
  const auto backend = group.getBackend(c10::DeviceType::CPU);
  const auto* named = dynamic_cast<const NamedGloo*>(backend.get());
  if (!named) return std::nullopt;
  for (size_t rank = 0; rank < named->endpoints.size(); ++rank) {
    std::istringstream ends(named->endpoints[rank]);
    for (std::string end; ends >> end;)
      if (has_endpoint(text, end)) return static_cast<int>(rank);
  }
  return std::nullopt;
}

}  // namespace brigade::torch_port
