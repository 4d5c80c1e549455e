#include "team.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "brigade/launch.h"

namespace brigade::tool {
namespace {

LaunchOptions launch_options() {
  LaunchOptions options{.prefix = false};
  // As many threads as cores would make every measurement one of their scheduling.
  if (!std::getenv("OMP_NUM_THREADS")) options.environment["OMP_NUM_THREADS"] = "1";
  return options;
}

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

void run_team(const TeamOptions& options, const std::function<void(ProcessGroup)>& body) {
  launch(
      options.ranks,
      [&](int rank) {
        if (options.link) return body(options.link->join(rank));
        body(init_process_group({.backend = options.device == "cuda" ? "nccl" : "gloo"}));
      },
      launch_options());
}

void run_team(const TeamOptions& options, const std::vector<std::string>& command) {
  launch(
      options.ranks,
      [&](int rank) {
        if (options.link) speak_of_hosts(options, rank);
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
