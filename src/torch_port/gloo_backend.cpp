#define USE_C10D_GLOO
#include "torch_port/gloo_backend.h"

#include <dirent.h>
#include <sys/socket.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace brigade::torch_port {
namespace {

// Gloo waits this many times its limit for a peer to connect: a peer that died meanwhile
// would hold the others for as long.
constexpr int kGloosPatience = 5;

// Waits for `limit`, whatever shorter one gloo was given because of that.
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

std::set<int> listening_sockets() {
  std::set<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens)
      found.insert(fd);
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
  // One device after the other, so that each finds its own. To make one waits for nobody.
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const std::set<int> before = listening_sockets();
  auto device = make();
  for (const int fd : listening_sockets())
    if (!before.contains(fd)) *listener = fd;
  return device;
}

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
  auto backend = c10::make_intrusive<Gloo>(
      c10::make_intrusive<StoreWithLimit>(std::move(store), limit), rank, size, gloo);
  backend->setTimeout(options.timeout);
  backend->setSequenceNumberForGroup();
  return backend;
}

}  // namespace brigade::torch_port
