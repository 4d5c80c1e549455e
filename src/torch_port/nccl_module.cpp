// libbrigade_nccl.so: the only file with NCCL's names. See nccl_backend.h.
#define USE_C10D_NCCL
#include <torch/headeronly/version.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "torch_port/nccl_backend.h"

namespace brigade::torch_port {
namespace {

c10::intrusive_ptr<c10d::Backend> make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                       int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, options);
  backend->setSequenceNumberForGroup();
  return backend;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const NcclModule* brigade_nccl_module() {
  static const NcclModule module{TORCH_VERSION, make};
  return &module;
}

}  // namespace brigade::torch_port
