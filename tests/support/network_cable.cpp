#include "support/network_cable.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "support/command.h"

namespace brigade::testing {
namespace {

constexpr const char* kFirstAddress = "10.78.0.1";

void run_or_throw(const std::string& commands) {
  const auto result = run_command({"bash", "-c", "set -e; " + commands});
  if (result.exit_code != 0)
    throw std::runtime_error("the cable: '" + commands + "': " + result.err);
}

void enter(const std::string& name) {
  const int fd = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
    throw std::runtime_error("cannot enter the network namespace " + name);
  close(fd);
}

}  // namespace

NetworkCable::NetworkCable() {
  const std::string id = "brw" + std::to_string(getpid());
  names_ = {id + "l", id + "r"};
  std::ostringstream make;
  make << "ip netns add " << names_[0] << "; ip netns add " << names_[1] << "; ip -n "
       << names_[0] << " link add " << kDevice << " type veth peer name " << kDevice
       << " netns " << names_[1];
  for (const size_t side : {0, 1}) {
    make << "; ip -n " << names_[side] << " addr add 10.78.0." << side + 1 << "/24 dev "
         << kDevice << "; ip -n " << names_[side] << " link set lo up; ip -n "
         << names_[side] << " link set " << kDevice << " mtu 9000 up";
  }
  try {
    run_or_throw(make.str());
  } catch (...) {
    remove();
    throw;
  }
}

NetworkCable::~NetworkCable() { remove(); }

void NetworkCable::remove() const {
  for (const std::string& name : names_) {
    run_command({"bash", "-c",
                 "ip netns pids " + name +
                     " 2>/dev/null | xargs -r kill -9; ip netns del " + name});
  }
}

void NetworkCable::limit(const std::string& rate) const {
  for (const std::string& name : names_) {
    const std::string place = " dev " + std::string(kDevice) + " root tbf rate " + rate +
                              " burst 256kb latency 50ms";
    run_or_throw("tc -n " + name + " qdisc change" + place + " 2>/dev/null || tc -n " +
                 name + " qdisc add" + place);
  }
}

ProcessGroup NetworkCable::join(int rank, int ranks) const {
  enter(names_[rank < ranks / 2 ? 0 : 1]);
  // Without these variables the ranks do not know that they share a machine.
  for (const char* variable : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                               "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR"}) {
    unsetenv(variable);
  }
  ProcessGroupOptions options;
  options.backend = "gloo";
  options.init_method = std::string("tcp://") + kFirstAddress + ":29600";
  options.rank = rank;
  options.world_size = ranks;
  options.timeout = std::chrono::seconds(20);
  options.interface = kDevice;
  return init_process_group(options);
}

}  // namespace brigade::testing
