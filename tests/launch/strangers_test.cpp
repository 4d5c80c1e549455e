// Foreign connections to a job's ports, with garbage or silence, do it no harm.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <list>
#include <set>
#include <sstream>

#include "brigade/launch.h"
#include "brigade/process_group.h"
#include "launch/several_nodes.h"

namespace brigade {
namespace {

using testing::TemporaryFolder;

// Connects to a port that is meant for others.
class Stranger {
 public:
  explicit Stranger(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  bool connected() const { return connected_; }
  bool say(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }

 private:
  int fd_;
  bool connected_ = false;
};

// Some send nothing, some a few bytes, some much; one begins as the store's own client does
// and stops in the middle of a message.
void disturb(int port, std::list<Stranger>& strangers) {
  for (const size_t length : {0, 1, 7, 8, 100, 60'000}) {
    strangers.emplace_back(port);
    EXPECT_TRUE(strangers.back().connected());
    strangers.back().say(std::string(length, static_cast<char>(length)));
  }
  strangers.emplace_back(port);
  strangers.back().say(std::string("\0\xce\xf7\x85\x3c\x01\xff\0\0\0\0\0\0\0x", 15));
  const Stranger half_open(port);
}

// The number behind `name` in a command's output.
int number_after(const std::string& name, const std::string& said) {
  return std::stoi(said.substr(said.find(name) + name.size()));
}

class Strangers : public Nodes {
 protected:
  // The test makes this file after the worker has said that it waits for it.
  std::string flag() const { return folder_.path() + "/go"; }
  void raise_flag() const { std::ofstream(flag()) << "go"; }

  const TemporaryFolder folder_;
  const std::string worker_ = testing::built_program("launch_worker");
};

TEST_F(Strangers, NoiseAndSilenceAtThePortHoldNobodyUp) {
  auto first = node(0, {worker_});
  const int port = std::stoi(port_);
  std::list<Stranger> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.emplace_back(port);
    while (!strangers.back().connected()) {  // node 0 does not listen yet
      usleep(20'000);
      strangers.pop_back();
      strangers.emplace_back(port);
    }
  }
  disturb(port, strangers);
  auto second = node(1, {worker_});
  for (Command* command : {first.get(), second.get()}) {
    const CommandResult result = command->finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("sum 3"), std::string::npos) << result.out;
  }
}

TEST_F(Strangers, NoiseAndSilenceAtTheStoreOfOneHostDoNoHarm) {
  Command command(brigade_run({"-n", "2", "--master-port", port_, worker_, "wait", flag()}),
                  options_);
  ASSERT_TRUE(command.wait_for_output("[0] pid "));
  ASSERT_TRUE(command.wait_for_output("[1] pid "));
  std::list<Stranger> strangers;
  disturb(std::stoi(port_), strangers);
  raise_flag();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("[1] then 12"), std::string::npos) << result.out;
}

// The ports that a process listens on.
std::set<int> listening_ports(int pid) {
  std::set<std::string> sockets;
  const std::string process = "/proc/" + std::to_string(pid);
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    sockets.insert(std::filesystem::read_symlink(entry, gone).string());
  }
  std::set<int> ports;
  std::ifstream table(process + "/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retries >> user >>
        timeout >> inode;
    if (state == "0A" && sockets.contains("socket:[" + inode + "]"))
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

TEST_F(Strangers, NoiseAndSilenceAtAWorkersPortDoNoHarm) {
  Command command(brigade_run({"-n", "2", worker_, "wait", flag()}), options_);
  ASSERT_TRUE(command.wait_for_output("[0] pid "));
  ASSERT_TRUE(command.wait_for_output("[1] pid "));
  ASSERT_TRUE(command.wait_for_output("\n"));
  std::list<Stranger> strangers;
  for (const char* name : {"[0] pid ", "[1] pid "}) {
    const auto ports = listening_ports(number_after(name, command.said()));
    ASSERT_FALSE(ports.empty());
    for (int port : ports) disturb(port, strangers);
  }
  raise_flag();
  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // The output is 3, summed over two ranks twice.
  EXPECT_NE(result.out.find("[0] then 12"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("[1] then 12"), std::string::npos) << result.out;
}

// Otherwise the port would stay taken after the launcher, and connections get no answer.
TEST(Launch, AForkedWorkerDoesNotHoldTheStoresSocket) {
  for (const bool elastic : {false, true}) {
    LaunchOptions options;
    if (elastic) options.elastic = ElasticLaunch{};
    launch(
        1,
        [](int) {
          if (!listening_ports(getpid()).empty())
            throw std::runtime_error("this worker holds a socket that listens");
        },
        options);
  }
}

}  // namespace
}  // namespace brigade
