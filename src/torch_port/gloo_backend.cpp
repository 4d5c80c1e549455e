#define USE_C10D_GLOO
#include "torch_port/gloo_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade::torch_port {

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                       const GlooOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->threads = options.threads;
  gloo->devices.push_back(options.address.empty()
                              ? c10d::ProcessGroupGloo::createDeviceForInterface(options.interface)
                              : c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo);
  backend->setSequenceNumberForGroup();

  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  // Gloo takes CUDA tensors too: it stages them through pinned memory.
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace brigade::torch_port
