#define USE_C10D_GLOO
#include "torch_port/gloo_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade::torch_port {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    const GlooOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(options.timeout);
  gloo->threads = options.threads;
  gloo->devices.push_back(options.address.empty()
                              ? Gloo::createDeviceForInterface(options.interface)
                              : Gloo::createDeviceForHostname(options.address));
  auto backend = c10::make_intrusive<Gloo>(std::move(store), rank, size, gloo);
  backend->setSequenceNumberForGroup();
  return backend;
}

}  // namespace brigade::torch_port
