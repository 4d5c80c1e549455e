#include "common/team.h"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

#include "brigade/launch.h"
#include "common/accelerator.h"

namespace brigade::tool {
namespace {

LaunchOptions launch_options() {
  LaunchOptions options{.prefix = false};
  // As many threads as cores would make every measurement one of their scheduling.
  if (!std::getenv("OMP_NUM_THREADS")) options.environment["OMP_NUM_THREADS"] = "1";
  return options;
}

// What is freed stays with the process: whether the kernel hands out and clears the same
// pages in every step or in none is chance, and doubles the time of some hooks.
void keep_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_ARENA_MAX, 1);
}
// The same for programs.
const std::map<std::string, std::string> kKeepMemory{
    {"MALLOC_MMAP_MAX_", "0"},
    {"MALLOC_TRIM_THRESHOLD_", "2147483647"},
    {"MALLOC_ARENA_MAX", "1"}};

// For programs on a link, which know torchrun's variables only.
void speak_of_hosts(const TeamOptions& options, int rank) {
  options.link->enter(rank);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  const std::string none = "0", one = "1";
  setenv("LOCAL_RANK", none.c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", one.c_str(), 1);
  setenv("MASTER_ADDR", ShapedLink::address(0).c_str(), 1);
  setenv("MASTER_PORT", "29601", 1);  // of the link's own network
  setenv("GLOO_SOCKET_IFNAME", ShapedLink::kInterface, 1);
}

// NCCL refuses two ranks on one GPU, unless it takes them for two hosts.
void share_a_gpu(int rank) {
  setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  for (const char* off : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"})
    setenv(off, "1", 1);
}

// A link's hosts have no names, of which LibTorch's store would warn each time.
void warn_less() {
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);
  c10::initLogging();
}

}  // namespace

Answers::Answers() : fd_(memfd_create("brigade answers", MFD_CLOEXEC)), owner_(getpid()) {
  if (fd_ < 0) throw Error(std::string("memfd_create: ") + std::strerror(errno));
}

Answers::~Answers() { close(fd_); }

std::string Answers::path() const {
  return "/proc/" + std::to_string(owner_) + "/fd/" + std::to_string(fd_);
}

void Answers::add(const nlohmann::json& answer) const {
  const std::string line = answer.dump() + "\n";
  // Opened anew: the inherited descriptor's position is everybody's.
  const int fd = open(path().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const bool written =
      fd >= 0 && write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!written) throw Error(std::string("cannot answer: ") + std::strerror(error));
}

std::vector<nlohmann::json> Answers::all() const {
  std::string text(static_cast<size_t>(lseek(fd_, 0, SEEK_END)), '\0');
  if (pread(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw Error(std::string("cannot read the workers' answers: ") + std::strerror(errno));
  std::vector<nlohmann::json> answers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    answers.push_back(nlohmann::json::parse(line, nullptr, false));
    if (answers.back().is_discarded())
      throw Error("a worker's answer is not JSON: " + line);
  }
  return answers;
}

void run_team(const TeamOptions& options, const TeamBody& body) {
  const auto work = [&](int rank) {
    keep_memory();
    if (options.link) {
      warn_less();
      return body(options.link->join(rank), c10::Device(c10::kCPU));
    }
    const c10::Device device = choose_device(options.device, rank);
    if (device.is_cuda() &&
        cuda_device_names().size() < static_cast<size_t>(options.ranks)) {
      share_a_gpu(rank);
    }
    body(init_process_group({.backend = device.is_cuda() ? "nccl" : "gloo"}), device);
  };
  launch(options.ranks, work, launch_options());
}

void run_team(const TeamOptions& options, const std::vector<std::string>& command) {
  launch(
      options.ranks,
      [&](int rank) {
        for (const auto& [name, value] : kKeepMemory)
          setenv(name.c_str(), value.c_str(), 0);
        if (options.link) speak_of_hosts(options, rank);
        if (options.device == "cuda" &&
            cuda_device_names().size() < static_cast<size_t>(options.ranks)) {
          share_a_gpu(rank);
        }
        std::vector<char*> argv;
        for (const std::string& word : command)
          argv.push_back(const_cast<char*>(word.c_str()));
        argv.push_back(nullptr);
        execvp(argv[0], argv.data());
        throw Error("cannot run " + command[0] + ": " + std::strerror(errno));
      },
      launch_options());
}

}  // namespace brigade::tool
