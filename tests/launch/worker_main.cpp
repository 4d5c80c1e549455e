// A small worker program for the launchers' tests: finds its peers, sums over them, and
// prints the sum.
#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "brigade/launch.h"
#include "brigade/process_group.h"

int main(int argc, char** argv) {
  return brigade::record_errors([&] {
    brigade::ProcessGroup group = brigade::init_process_group({.backend = "gloo"});
    at::Tensor sum = at::ones({3}) * (group.rank() + 1);
    group.all_reduce(sum);
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    std::printf("rank %d of %d sum %g restarts %s\n", group.rank(), group.size(),
                sum[0].item<double>(), restarts ? restarts : "none");
    std::fflush(stdout);
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "throw" && group.rank() == 1)
      throw std::runtime_error("the worker's own words");
    if (mode == "kill" && group.rank() == 1) raise(SIGKILL);
    if (mode == "throw" || mode == "kill") group.all_reduce(sum);
    // Waits until the file is there, then connects to its peers anew.
    if (mode == "wait") {
      std::printf("pid %d\n", getpid());
      std::fflush(stdout);
      while (access(argv[2], F_OK) != 0) usleep(10'000);
      group.duplicate().all_reduce(sum);
      group.all_reduce(sum);
      std::printf("then %g\n", sum[0].item<double>());
    }
    if (mode == "once" && std::string(restarts) == "0")
      throw std::runtime_error("first time");
    group.barrier();
  });
}
