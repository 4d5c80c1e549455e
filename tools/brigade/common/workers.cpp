#include "common/workers.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/error_file.h"
#include "brigade/error.h"
#include "common/accelerator.h"
#include "common/shared_memory.h"
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
  // Throws what was left, if anything.
  void rethrow() const {
    if (exit_code == 2) throw ConfigError(text);
    if (exit_code != 0) throw Error(text);
  }
};

// What fails on all ranks at once, saving for instance, is cleaned up by each: the first to
// exit would have the launcher end the others in the middle of it.
void let_others_end(const std::atomic<int>& ended, int workers) {
  for (int tries = 0; tries < 100 && ended < workers; ++tries) usleep(5'000);
}

// A text of one's own type needs no type before it.
std::string text_of(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) ? error.what() : base::describe(error);
}

Worker make_worker(const WorkerOptions& options, int local_rank,
                   const ShapedLink* link = nullptr) {
  if (link) {
    // First of all: a process with threads cannot move.
    const ProcessGroup group = link->join(local_rank);
    return {group, choose_device(options.device, local_rank)};
  }
  const c10::Device device = choose_device(options.device, local_rank);
  std::string backend = options.backend;
  if (backend == "auto" && device.is_cpu()) backend = "gloo";
  return {init_process_group({.backend = backend}), device};
}

int local_rank_of_this_process() {
  return group::read_environment(group::process_environment()).local_rank.value_or(0);
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
  command.add_option("--device", options.device, "where they compute: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

bool is_worker() {
  const auto environment = group::read_environment(group::process_environment());
  return environment.source != "none";
}

void run_workers(const WorkerOptions& options,
                 const std::function<void(const Worker& worker)>& body,
                 LaunchOptions launch_options, const ShapedLink* link) {
  const SharedMemory<FirstError> first;
  launch_options.prefix = false;
  const auto work = [&](int rank) {
    int exit_code = 1;
    try {
      const Worker worker = make_worker(options, rank, link);
      body(worker);
      ++first->ended;
      return;
    } catch (const ConfigError& error) {
      first->leave(exit_code = 2, error.what());
    } catch (const std::exception& error) {
      first->leave(exit_code, text_of(error));
    }
    ++first->ended;
    let_others_end(first->ended, options.workers);
    // Not by an exception: the parent says it, once.
    std::cout.flush();
    std::fflush(nullptr);
    _exit(exit_code);
  };
  try {
    launch(options.workers, work, launch_options);
  } catch (const LaunchError& error) {
    if (error.failure() && !error.failure()->signal) first->rethrow();
    throw;
  }
}

void run_as_worker(const WorkerOptions& options,
                   const std::function<void(const Worker& worker)>& body) {
  body(make_worker(options, local_rank_of_this_process()));
}

}  // namespace brigade::tool
