// Workers of the subcommands that start their own.
#pragma once
#include <ATen/core/Tensor.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "brigade/launch.h"
#include "brigade/process_group.h"
#include "common/shaped_link.h"

namespace brigade::tool {

struct WorkerOptions {
  int workers = 2;
  std::string backend = "auto";
  std::string device = "cpu";
};
// -n, --backend and --device.
void add_worker_options(CLI::App& command, WorkerOptions& options);

// What a worker has from the beginning.
struct Worker {
  ProcessGroup group;
  c10::Device device;
};

// Whether a launcher (brigade run, torchrun, srun, mpirun) started this process as one of
// several workers.
bool is_worker();

// Runs `body` in `options.workers` processes and returns when all have returned. What the
// first of them threw is thrown here: a ConfigError as such, anything else as Error; a
// worker that died without a word is a LaunchError. `launch_options.prefix` is off. With a
// `link` of as many hosts they talk over that, by Gloo.
// REQUIRES: this process has one thread and has not touched CUDA.
void run_workers(const WorkerOptions& options,
                 const std::function<void(const Worker& worker)>& body,
                 LaunchOptions launch_options = {}, const ShapedLink* link = nullptr);

// The same in a process that is a worker already; `workers` is not looked at.
void run_as_worker(const WorkerOptions& options,
                   const std::function<void(const Worker& worker)>& body);

}  // namespace brigade::tool
