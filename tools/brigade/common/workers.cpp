#include "common/workers.h"

#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "brigade/launch.h"
#include "common/accelerator.h"
#include "common/shaped_link.h"
#include "common/shared_memory.h"
#include "common/standard_output.h"
#include "group/environment.h"

namespace brigade::tool {
namespace {

// The first worker to fail leaves its reason to the parent.
struct FirstError {
  std::atomic<bool> taken{false};
  std::atomic<int> ended{0};  // workers that have failed or are done
  std::atomic<int> exit_code{0};
  char text[8192] = {};

  void leave(int code, const std::string& why) {
    if (taken.exchange(true)) return;
    std::strncpy(text, why.c_str(), sizeof text - 1);
    exit_code = code;
  }
  // Throws the recorded error, if there is one.
  void rethrow() const {
    if (exit_code == 2) throw ConfigError(text);
    if (exit_code != 0) throw Error(text);
  }
};

// When all ranks fail at once, for instance in saving, each cleans up by itself, and the
// launcher would end the others in the middle of it as soon as the first exits.
void let_others_end(const std::atomic<int>& ended, int workers) {
  for (int tries = 0; tries < 100 && ended < workers; ++tries) usleep(5'000);
}

// Whether a freed page is handed out and cleared again in every step or never is chance,
// and doubles the time of some hooks.
void keep_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_ARENA_MAX, 1);
}
// The same for a program that this process will exec.
void keep_memory_of_program() {
  for (const auto& [name, value] :
       {std::pair{"MALLOC_MMAP_MAX_", "0"}, std::pair{"MALLOC_ARENA_MAX", "1"},
        std::pair{"MALLOC_TRIM_THRESHOLD_", "2147483647"}}) {
    setenv(name, value, 0);
  }
}

// Rank 0 says this once, beside what it prints for programs.
void say_that_gpus_are_shared(const WorkerOptions& options, size_t gpus) {
  std::fprintf(stderr,
               "brigade: %d ranks share %zu GPU%s: NCCL takes each for a host of its own "
               "and sends through sockets\n",
               options.workers, gpus, gpus == 1 ? "" : "s");
  if (!options.measuring || mps_is_running()) return;
  std::fprintf(
      stderr,
      "brigade: warning: without NVIDIA's multi-process service they take turns on "
      "it, and times are those of time slices; start it first: "
      "nvidia-cuda-mps-control -d\n");
}

// NCCL refuses two ranks on one GPU, unless it takes them for ranks of two hosts.
void share_gpus(const WorkerOptions& options, int rank, bool says) {
  if (options.device != "cuda" || options.link) return;
  // Under MPS a process has so few queues to the GPU that streams wait for each other. An
  // H200 has fewer than 32 for each of four processes. CUDA reads this when it starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", options.workers <= 2 ? "32" : "8", /*overwrite=*/0);
  const size_t gpus = cuda_device_names().size();
  if (gpus == 0 || gpus >= static_cast<size_t>(options.workers)) return;
  if (says && rank == 0) say_that_gpus_are_shared(options, gpus);
  setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  for (const char* off : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"})
    setenv(off, "1", 1);
}

// Moves a process, which will exec a program, to its host; sets torchrun's variables.
void enter_host(const ShapedLink& link, int rank) {
  link.enter(link.host_of(rank));
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  const int each = link.ranks_per_host();
  for (const auto& [name, value] :
       {std::pair<const char*, std::string>{"LOCAL_RANK", std::to_string(rank % each)},
        {"LOCAL_WORLD_SIZE", std::to_string(each)},
        {"GROUP_RANK", std::to_string(link.host_of(rank))},
        {"MASTER_ADDR", ShapedLink::address(0)},
        {"MASTER_PORT", "29601"},  // in the link's own network
        {"GLOO_SOCKET_IFNAME", ShapedLink::kInterface}}) {
    setenv(name, value.c_str(), 1);
  }
  // These hosts have no names; LibTorch warns of that for each connection.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
}

Worker make_worker(const WorkerOptions& options, int local_rank) {
  if (options.link) {
    // This comes first, because a process with threads cannot move.
    const ProcessGroup group = options.link->join(local_rank);
    return {group, choose_device(options.device, local_rank)};
  }
  const c10::Device device = choose_device(options.device, local_rank);
  std::string backend = options.backend;
  if (backend == "auto" && device.is_cpu()) backend = "gloo";
  return {init_process_group({.backend = backend}), device};
}

LaunchOptions launch_options(const WorkerOptions& options) {
  LaunchOptions launch{.environment = options.environment, .prefix = false};
  // With as many threads as cores a measurement would be one of their scheduling.
  if (options.measuring && !std::getenv("OMP_NUM_THREADS"))
    launch.environment["OMP_NUM_THREADS"] = "1";
  return launch;
}

// Calls `work` in every worker, and throws here what the first of them to fail threw.
void launch_workers(const WorkerOptions& options,
                    const std::function<void(int rank)>& work) {
  const SharedMemory<FirstError> first;
  const auto guarded = [&](int rank) {
    int exit_code = 1;
    try {
      work(rank);
      check_standard_output();
      ++first->ended;
      return;
    } catch (const ConfigError& error) {
      first->leave(exit_code = 2, error.what());
    } catch (const Error& error) {
      first->leave(exit_code, base::report_of(error));
    } catch (const std::exception& error) {  // not ours: does not name the rank
      first->leave(exit_code,
                   "rank " + std::to_string(rank) + ": " + base::report_of(error));
    }
    ++first->ended;
    let_others_end(first->ended, options.workers);
    // No exception leaves the worker: the parent reports the error, once.
    std::cout.flush();
    std::fflush(nullptr);
    _exit(exit_code);
  };
  try {
    launch(options.workers, guarded, launch_options(options));
  } catch (const LaunchError& error) {
    if (error.failure() && !error.failure()->signal) first->rethrow();
    throw;
  }
}

[[noreturn]] void become(const std::vector<std::string>& program) {
  std::vector<char*> argv;
  for (const std::string& word : program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  throw Error("cannot run " + program[0] + ": " + std::strerror(errno));
}

}  // namespace

void add_worker_options(CLI::App& command, WorkerOptions& options) {
  command.add_option("-n,--workers", options.workers, "processes, each a replica")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--backend", options.backend,
                  "how they talk: gloo, nccl, or auto (nccl "
                  "with --device cuda where it can be used)")
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}))
      ->capture_default_str();
  add_device_option(command, options.device, "where they compute: cpu or cuda");
}

void add_device_option(CLI::App& command, std::string& device, const std::string& help) {
  command.add_option("--device", device, help)
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

WorkerOptions measuring_workers(int workers, const std::string& device,
                                const ShapedLink* link) {
  return {.workers = workers,
          .backend = device == "cuda" ? "nccl" : "gloo",
          .device = device,
          .link = link,
          .measuring = true};
}

void run_workers(const WorkerOptions& options, const WorkerBody& body) {
  launch_workers(options, [&](int rank) {
    if (options.measuring) keep_memory();
    share_gpus(options, rank, /*says=*/true);
    body(make_worker(options, rank));
  });
}

void run_workers(const WorkerOptions& options, const std::vector<std::string>& program) {
  launch_workers(options, [&](int rank) {
    if (options.measuring) keep_memory_of_program();
    if (options.link) enter_host(*options.link, rank);
    share_gpus(options, rank, /*says=*/false);
    become(program);
  });
}

bool is_worker() {
  const auto environment = group::read_environment(group::process_environment());
  return environment.source != "none";
}

void run_as_worker(const WorkerOptions& options, const WorkerBody& body) {
  const auto environment = group::read_environment(group::process_environment());
  body(make_worker(options, environment.local_rank.value_or(0)));
}

}  // namespace brigade::tool
