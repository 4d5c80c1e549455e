// Real ranks with CUDA tensors. They share one GPU, and NCCL takes them for ranks of
// different hosts. Skipped without a GPU.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "brigade/brigade.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade::testing {

// The test program must start without CUDA, so it does not link LibTorch's CUDA part.
inline void load_cuda(int rank) {
  const std::string host = "host" + std::to_string(rank);
  setenv("NCCL_HOSTID", host.c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  // Under MPS the default is small, and streams would wait for each other.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 0);
  for (const char* off : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"})
    setenv(off, "1", 1);
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
    throw std::runtime_error(dlerror());
}

// For tests that could run any number of steps.
inline int steps_of_a_test() {
  const char* steps = std::getenv("BRIGADE_CUDA_STEPS");
  return steps ? std::max(1, std::atoi(steps)) : 32;
}
inline std::chrono::seconds wall_of_a_test() {
  return std::chrono::seconds(280) * std::max(1, (steps_of_a_test() + 31) / 32);
}

// Runs `body` with a group of CUDA ranks over the backend; each `a_host` of them count as
// ranks of one host.
inline void run_cuda_ranks(const std::string& backend,
                           const std::function<void(ProcessGroup)>& body, int ranks = 2,
                           std::optional<int> a_host = std::nullopt) {
  if (!std::filesystem::exists("/dev/nvidiactl"))
    GTEST_SKIP() << "no NVIDIA GPU on this machine";
  run_ranks(ranks,
            [&](ProcessGroup hosts) {
              load_cuda(hosts.rank());
              if (backend == "gloo") return body(hosts);
              ProcessGroupOptions options;
              options.backend = backend;
              options.timeout = hosts.timeout();
              if (a_host) options.node = hosts.rank() / *a_host;
              body(init_process_group(options));
              hosts.barrier();
            },
            {.timeout = std::chrono::seconds(60), .wall = wall_of_a_test()});
}

// Runs `body` in a separate process, or in this one with BRIGADE_IN_PROCESS, for
// compute-sanitizer, which does not follow a fork.
inline void run_alone_on_cuda(const std::function<void()>& body) {
  if (!std::filesystem::exists("/dev/nvidiactl"))
    GTEST_SKIP() << "no NVIDIA GPU on this machine";
  if (std::getenv("BRIGADE_IN_PROCESS")) {
    load_cuda(0);
    return body();
  }
  run_ranks(1,
            [&](const ProcessGroup&) {
              load_cuda(0);
              body();
            },
            {.wall = std::chrono::seconds(280)});
}

inline const at::Device kGpu{at::kCUDA, 0};

inline std::shared_ptr<BagImpl> bag_on_gpu(const Shapes& shapes, at::ScalarType dtype) {
  auto bag = std::make_shared<BagImpl>(shapes, dtype);
  bag->to(kGpu);
  return bag;
}

using BagDdp = DistributedDataParallel<BagImpl>;

// The gradients of all parameters, on this rank, in a step.
inline std::vector<at::Tensor> coefficients_on_gpu(const Shapes& shapes, int rank,
                                                   int64_t step, Gradients kind = {}) {
  std::vector<at::Tensor> list;
  for (size_t index = 0; index < shapes.size(); ++index)
    list.push_back(
        coefficient(shapes[index], at::kFloat, rank, step, index, kind).to(kGpu));
  return list;
}

}  // namespace brigade::testing
