#define USE_C10D_GLOO
#include "torch_port/gloo_backend.h"

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

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    const GlooOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto limit = options.timeout;
  auto gloo =
      Gloo::Options::create(std::max(limit / kGloosPatience, std::chrono::milliseconds(1)));
  gloo->threads = options.threads;
  gloo->devices.push_back(options.address.empty()
                              ? Gloo::createDeviceForInterface(options.interface)
                              : Gloo::createDeviceForHostname(options.address));
  auto backend = c10::make_intrusive<Gloo>(
      c10::make_intrusive<StoreWithLimit>(std::move(store), limit), rank, size, gloo);
  backend->setTimeout(limit);
  backend->setSequenceNumberForGroup();
  return backend;
}

}  // namespace brigade::torch_port
