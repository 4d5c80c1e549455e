// The one way in which subcommands start their workers: real processes on this machine, one
// a rank.
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
  // "cpu" or "cuda". Worker r has GPU r; where there are fewer GPUs, several share one.
  std::string device = "cpu";
  // Null: all are on this host and talk over loopback. Else they are on the link's hosts,
  // and talk over it by Gloo. REQUIRES: it has as many ranks as there are workers.
  const ShapedLink* link = nullptr;
  // Each worker has one thread unless OMP_NUM_THREADS says otherwise, and keeps the memory
  // it frees, so that times do not depend on the kernel's work.
  bool measuring = false;
  // Further variables of the workers.
  std::map<std::string, std::string> environment = {};
};
// Adds -n, --backend and --device.
void add_worker_options(CLI::App& command, WorkerOptions& options);
// Adds --device alone.
void add_device_option(CLI::App& command, std::string& device, const std::string& help);
// For measurements: Gloo on the CPU, NCCL on CUDA and nothing in its place.
WorkerOptions measuring_workers(int workers, const std::string& device = "cpu",
                                const ShapedLink* link = nullptr);

// What a worker has from the beginning.
struct Worker {
  ProcessGroup group;
  c10::Device device;
};
using WorkerBody = std::function<void(const Worker& worker)>;

// Calls `body` in `options.workers` processes and returns when all have returned. What the
// first of them threw is thrown here: a ConfigError as such, anything else as Error; a
// worker that died without a word is a LaunchError.
// REQUIRES: this process has one thread and has not touched CUDA.
void run_workers(const WorkerOptions& options, const WorkerBody& body);
// The same for a program that reads torchrun's variables. It is told the device by its own
// arguments. A program that fails is a LaunchError.
void run_workers(const WorkerOptions& options, const std::vector<std::string>& program);

// Whether a launcher (brigade run, torchrun, srun, mpirun) started this process as one of
// several workers.
bool is_worker();
// Calls `body` in such a process. Only `backend` and `device` are looked at.
void run_as_worker(const WorkerOptions& options, const WorkerBody& body);

}  // namespace brigade::tool
