// Starts the workers of all subcommands: real processes on this machine, one for each rank.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace CLI {
class App;
}

namespace brigade::tool {

class ShapedLink;

struct WorkerOptions {
  int workers = 2;
  // "gloo", "nccl", or "auto": NCCL on CUDA where it can be used, else Gloo.
  std::string backend = "auto";
  // "cpu" or "cuda". Worker r gets GPU r; several share one where there are fewer.
  std::string device = "cpu";
  // Null: all are on this host and use loopback. Else they are on the link's hosts and use
  // it by Gloo. REQUIRES: it has as many ranks as there are workers.
  const ShapedLink* link = nullptr;
  // Each worker has one thread unless OMP_NUM_THREADS says otherwise, and keeps the memory
  // that it frees, so that times do not depend on the kernel's work.
  bool measuring = false;
  // Further environment variables for the workers.
  std::map<std::string, std::string> environment = {};
};
// Adds -n, --backend and --device.
void add_worker_options(CLI::App& command, WorkerOptions& options);
// Adds --device alone.
void add_device_option(CLI::App& command, std::string& device, const std::string& help);
// For measurements: Gloo on the CPU, NCCL on CUDA, and no fallback.
WorkerOptions measuring_workers(int workers, const std::string& device = "cpu",
                                const ShapedLink* link = nullptr);

// The group and the device of each worker.
struct Worker {
  ProcessGroup group;
  c10::Device device;
};
using WorkerBody = std::function<void(const Worker& worker)>;

// Calls `body` in `options.workers` processes and returns when all have returned. Throws
// what the first of them to fail threw: a ConfigError as such, anything else as Error.
// Throws LaunchError for a worker that died without reporting an error.
// REQUIRES: this process has one thread and has not touched CUDA.
void run_workers(const WorkerOptions& options, const WorkerBody& body);
// The same for a program that reads torchrun's variables; its own arguments tell it the
// device. Throws LaunchError if the program fails.
void run_workers(const WorkerOptions& options, const std::vector<std::string>& program);

// Whether a launcher (brigade run, torchrun, srun, mpirun) started this process as one of
// several workers.
bool is_worker();
// Calls `body` in such a process. Uses only `backend` and `device`.
void run_as_worker(const WorkerOptions& options, const WorkerBody& body);

}  // namespace brigade::tool
