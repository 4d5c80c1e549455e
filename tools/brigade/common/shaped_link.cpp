#include "common/shaped_link.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "brigade/error.h"
#include "common/libtorch_log.h"
#include "common/options.h"

namespace brigade::tool {
namespace {

constexpr std::uint16_t kPort = 29600;  // nobody else is in the link's network

// Returns a descriptor that holds a fresh network namespace.
int new_namespace() {
  std::array<int, 2> ready{}, done{};
  if (pipe2(ready.data(), O_CLOEXEC) || pipe2(done.data(), O_CLOEXEC))
    throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) {
    char byte = unshare(CLONE_NEWNET) == 0 ? 0 : static_cast<char>(errno);
    close(done[1]);
    if (write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) > 0) _exit(1);
    _exit(0);
  }
  close(ready[1]);
  close(done[0]);
  char error = child < 0 ? static_cast<char>(errno) : EIO;
  int fd = -1;
  if (child > 0 && read(ready[0], &error, 1) == 1 && error == 0) {
    const std::string path = "/proc/" + std::to_string(child) + "/ns/net";
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) error = static_cast<char>(errno);
  }
  close(ready[0]);
  close(done[1]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (fd < 0) {
    throw Error(std::string("cannot make a network namespace: ") + std::strerror(error));
  }
  return fd;
}

// Runs a command, with words divided by spaces, in a namespace. Returns what it wrote to
// stderr, or nothing if it went well.
std::string failure_of(int network, const std::string& command) {
  std::vector<std::string> words;
  std::istringstream stream(command);
  for (std::string word; stream >> word;) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> errors{};
  if (pipe2(errors.data(), O_CLOEXEC)) return std::strerror(errno);
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_RDWR), 1);
    dup2(errors[1], 2);
    setenv("PATH", "/usr/sbin:/sbin:/usr/bin:/bin", 1);
    if (network < 0 || setns(network, CLONE_NEWNET) == 0) execvp(argv[0], argv.data());
    dprintf(2, "%s", std::strerror(errno));
    _exit(127);
  }
  close(errors[1]);
  std::string text;
  std::array<char, 512> buffer{};
  for (ssize_t count = 0; (count = read(errors[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(count));
  close(errors[0]);
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  if (status == 0) return "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? "it failed" : text;
}

// Uses Linux's own congestion control whatever this machine is set to, so that machines can
// be compared. BBR, which some are set to, takes up to twice as long where four hosts send
// little to each other. A kernel without cubic keeps its own.
void use_cubic(int network, const std::string& address) {
  failure_of(network, std::string("ip route change 10.78.0.0/16 dev ") +
                          ShapedLink::kInterface + " proto kernel scope link src " +
                          address + " congctl cubic");
}

void run(int network, const std::string& command) {
  const std::string failure = failure_of(network, command);
  if (!failure.empty()) throw Error("shaped link: '" + command + "': " + failure);
}

std::string descriptor_path(int fd) {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
}

// The burst is enough for the kernel's timer to keep the rate, so little more slips through
// unshaped.
std::string shaping(double bits_per_second) {
  const auto bytes = static_cast<long>(std::clamp(bits_per_second / 8 / 250, 20e3, 8e6));
  std::ostringstream text;
  text << "tbf rate " << static_cast<std::uint64_t>(bits_per_second) << "bit burst "
       << bytes << " latency 50ms";
  return text.str();
}

}  // namespace

std::string ShapedLink::missing() {
  if (geteuid() != 0) return "only root can make network namespaces";
  for (const char* tool : {"ip -V", "tc -V"}) {
    const std::string failure = failure_of(-1, tool);
    if (!failure.empty()) {
      return "the command '" + std::string(tool).substr(0, 2) + "' is missing (iproute2)";
    }
  }
  try {
    const ShapedLink probe(1, 1e9);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

ShapedLink::ShapedLink(int hosts, double bits_per_second, int ranks_per_host)
    : ranks_per_host_(ranks_per_host), rate_(rate_text(bits_per_second)) {
  try {
    switch_ = new_namespace();
    run(switch_, "ip link add brgs type bridge");
    run(switch_, "ip link set brgs up");
    for (int place = 0; place < hosts; ++place) {
      namespaces_.push_back(new_namespace());
      const int host = namespaces_.back();
      const std::string port = "port" + std::to_string(place);
      const std::string there = " netns " + descriptor_path(switch_);
      run(host, std::string("ip link add ") + kInterface + " type veth peer name " + port +
                    there);
      run(host, "ip addr add " + address(place) + "/16 dev " + kInterface);
      run(host, "ip link set lo up");
      run(host, std::string("ip link set ") + kInterface + " up");
      run(host, std::string("tc qdisc add dev ") + kInterface + " root " +
                    shaping(bits_per_second));
      use_cubic(host, address(place));
      run(switch_, "ip link set " + port + " master brgs up");
    }
  } catch (...) {
    for (int fd : namespaces_) close(fd);
    if (switch_ >= 0) close(switch_);
    throw;
  }
}

ShapedLink::~ShapedLink() {
  for (int fd : namespaces_) close(fd);
  close(switch_);
}

std::string ShapedLink::path(int place) const {
  return descriptor_path(namespaces_.at(static_cast<std::size_t>(place)));
}

std::string ShapedLink::address(int place) {
  return "10.78." + std::to_string(place / 250) + "." + std::to_string(place % 250 + 1);
}

void ShapedLink::enter(int place) const {
  if (setns(namespaces_.at(static_cast<std::size_t>(place)), CLONE_NEWNET) != 0) {
    throw Error("cannot enter the network namespace of host " + std::to_string(place) +
                ": " + std::strerror(errno));
  }
}

ProcessGroup ShapedLink::join(int rank,
                              std::optional<std::chrono::milliseconds> timeout) const {
  enter(host_of(rank));
  // They name the launcher's one host, and a store that cannot be reached from here.
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME"}) {
    unsetenv(name);
  }
  quiet_libtorch_log();  // these hosts have no names
  ProcessGroupOptions options;
  options.backend = "gloo";
  options.init_method = "tcp://" + address(0) + ":" + std::to_string(kPort);
  options.rank = rank;
  options.world_size = hosts() * ranks_per_host_;
  options.timeout = timeout;
  options.interface = kInterface;
  return init_process_group(options);
}

std::unique_ptr<ShapedLink> link_from(const std::string& rate, int hosts,
                                      int ranks_per_host) {
  if (rate.empty() || rate == "loopback") return nullptr;
  const double bits_per_second = parse_rate(rate, "--link");
  const std::string why = ShapedLink::missing();
  if (!why.empty()) throw ConfigError("--link cannot be used here: " + why);
  return std::make_unique<ShapedLink>(hosts, bits_per_second, ranks_per_host);
}

}  // namespace brigade::tool
