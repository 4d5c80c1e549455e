#include "support/ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <string>
#include <vector>

namespace brigade::testing {
namespace {

// Sends the worker's failed assertions to the parent, as text.
class FailureWriter : public ::testing::EmptyTestEventListener {
 public:
  FailureWriter(int fd, int rank) : fd_(fd), rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    write("rank " + std::to_string(rank_) + ": " + (result.file_name() ? result.file_name() : "?") + ":" +
          std::to_string(result.line_number()) + ": " + result.message() + "\n");
  }
  void write(const std::string& text) {
    failed_ = true;
    if (::write(fd_, text.data(), text.size()) < 0) _exit(98);
  }
  bool failed() const { return failed_; }

 private:
  int fd_;
  int rank_;
  bool failed_ = false;
};

[[noreturn]] void work(int rank, int fd, const std::function<void(ProcessGroup)>& body, const RankOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* writer = new FailureWriter(fd, rank);
  listeners.Append(writer);
  try {
    ProcessGroupOptions group;
    group.backend = "gloo";
    group.timeout = options.timeout;
    body(init_process_group(group));
  } catch (const std::exception& error) {
    writer->write("rank " + std::to_string(rank) + ": exception: " + error.what() + "\n");
  }
  fflush(nullptr);
  _exit(writer->failed() ? 1 : 0);
}

int listen_on_loopback(uint16_t& port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) || listen(fd, 128) ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length)) {
    throw std::runtime_error("cannot listen on loopback");
  }
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

void run_ranks(int ranks, const std::function<void(ProcessGroup)>& body, const RankOptions& options) {
  uint16_t port = 0;
  int listener = listen_on_loopback(port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  setenv("OMP_NUM_THREADS", "1", 0);
  int channel[2];
  ASSERT_EQ(pipe2(channel, O_CLOEXEC), 0);
  std::vector<pid_t> workers;
  for (int rank = 0; rank < ranks; ++rank) {
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      close(listener);
      close(channel[0]);
      work(rank, channel[1], body, options);
    }
    workers.push_back(pid);
  }
  close(channel[1]);
  std::string failures;
  {
    c10d::TCPStoreOptions tcp;
    tcp.port = port;
    tcp.isServer = true;
    tcp.waitWorkers = false;
    tcp.masterListenFd = listener;
    auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", tcp);
    auto deadline = std::chrono::steady_clock::now() + options.wall;
    char buffer[4096];
    while (true) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{channel[0], POLLIN, 0};
      if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
        failures += "the workers ran past the wall limit and were killed\n";
        for (pid_t pid : workers) kill(pid, SIGKILL);
        break;
      }
      ssize_t count = read(channel[0], buffer, sizeof buffer);
      if (count <= 0) break;
      failures.append(buffer, static_cast<size_t>(count));
    }
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      int status = 0;
      waitpid(workers[rank], &status, 0);
      if (WIFSIGNALED(status)) {
        failures += "rank " + std::to_string(rank) + ": ended by signal " + std::to_string(WTERMSIG(status)) + "\n";
      }
    }
  }
  close(channel[0]);
  if (!failures.empty()) ADD_FAILURE() << failures;
}

}  // namespace brigade::testing
