// brigade::launch: workers started from inside a program.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "brigade/launch.h"
#include "brigade/process_group.h"
#include "launch/workers/job_processes.h"
#include "support/command.h"

namespace brigade {
namespace {

// Counters that this process and its workers share.
struct Shared {
  void wait_for(int index) const {
    while (counts[index] == 0) usleep(1'000);
  }
  std::atomic<int>* counts = static_cast<std::atomic<int>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~Shared() { munmap(counts, 4096); }
};

// The error that launch() throws; fails the test if there is none.
LaunchError failure_of(int workers, const std::function<void(int)>& function,
                       const LaunchOptions& options = {}) {
  try {
    launch(workers, function, options);
  } catch (const LaunchError& error) {
    return error;
  }
  ADD_FAILURE() << "launch() ended well";
  return LaunchError("none", 0);
}

TEST(Launch, EveryWorkerGetsItsRankAndFindsItsPeers) {
  Shared shared;
  launch(3, [&](int rank) {
    ProcessGroup group = init_process_group({.backend = "gloo"});
    at::Tensor sum = at::ones({1}) * (rank + 1);
    group.all_reduce(sum);
    if (group.rank() == rank && group.size() == 3) shared.counts[rank] = sum.item<int>();
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(shared.counts[rank], 6);
}

TEST(Launch, AnExceptionIsReportedWithRankTypeAndText) {
  const LaunchError error = failure_of(2, [](int rank) {
    if (rank == 1) throw MismatchError("two and three differ");
    pause();
  });
  ASSERT_TRUE(error.failure());
  EXPECT_EQ(error.failure()->rank, 1);
  EXPECT_EQ(error.failure()->message, "brigade::MismatchError: two and three differ");
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_NE(std::string(error.what()).find("rank 1 failed: exit code 1"),
            std::string::npos);
  EXPECT_NE(std::string(error.what()).find("rank 0 ended by SIGTERM"), std::string::npos);
}

TEST(Launch, ASignalIsReportedByName) {
  const LaunchError error = failure_of(2, [](int rank) {
    if (rank == 0) raise(SIGSEGV);
    pause();
  });
  ASSERT_TRUE(error.failure());
  EXPECT_EQ(error.failure()->signal, SIGSEGV);
  EXPECT_EQ(error.exit_code(), 128 + SIGSEGV);
  EXPECT_NE(std::string(error.what()).find("signal SIGSEGV"), std::string::npos);
}

TEST(Launch, AWorkerThatStandsStillWhileAnotherFailsIsNamed) {
  Shared shared;
  const LaunchError error = failure_of(2, [&](int rank) {
    if (rank == 1) {
      shared.counts[0] = getpid();
      raise(SIGSTOP);
    }
    shared.wait_for(0);
    const std::string status = "/proc/" + std::to_string(shared.counts[0]) + "/status";
    for (std::string text; text.find("T (stopped)") == std::string::npos; usleep(1'000)) {
      std::ifstream file(status);
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    throw TimeoutError("nothing came");
  });
  ASSERT_TRUE(error.failure());
  EXPECT_EQ(error.failure()->rank, 0);
  EXPECT_NE(std::string(error.what()).find("rank 1, which stood still"), std::string::npos)
      << error.what();
}

TEST(Launch, AWorkerThatHasHardlyStartedIsEndedLikeAnyOther) {
  const LaunchError error = failure_of(16,
                                       [](int rank) {
                                         if (rank == 0) _exit(3);
                                         pause();
                                       },
                                       {.grace = std::chrono::milliseconds(60'000)});
  EXPECT_EQ(error.exit_code(), 3);
  EXPECT_EQ(std::string(error.what()).find("SIGKILL"), std::string::npos) << error.what();
}

TEST(Launch, ABadVariableOfAWorkerExitsWithTwo) {
  const LaunchError error = failure_of(1, [](int) { throw ConfigError("RANK is 'x'"); });
  EXPECT_EQ(error.exit_code(), 2);
}

TEST(Launch, TheFirstFailureIsShownNotItsPeersEcho) {
  const LaunchError error = failure_of(3, [](int rank) {
    ProcessGroup group = init_process_group({.backend = "gloo"});
    if (rank == 1) throw std::runtime_error("the cause");
    at::Tensor sum = at::ones({1});
    group.all_reduce(sum);
  });
  ASSERT_TRUE(error.failure());
  EXPECT_EQ(error.failure()->rank, 1) << error.what();
  EXPECT_EQ(error.failure()->message, "std::runtime_error: the cause");
}

// Returns the rank that counts as the cause when rank 0 fails with `first`, then rank 1.
int cause_of(const std::function<void()>& first, const std::function<void()>& second) {
  Shared shared;
  const LaunchError error = failure_of(2, [&](int rank) {
    if (rank == 0) {
      shared.counts[0] = 1;
      first();
    }
    shared.wait_for(0);
    usleep(200'000);
    second();
  });
  return error.failure() ? error.failure()->rank : -1;
}

TEST(Launch, ARankThatWasToldOfAnothersErrorIsNotTheCause) {
  const auto hook_of_1 = [] { throw HookError("hook 'mine'", Failure::other, 1); };
  const std::function<void()> echoes[]{
      hook_of_1, [] { throw PeerLostError("it is gone", 1); },
      [] { throw PeerLostError("somebody is gone"); },
      [] { throw HookError("hook 'mine'", Failure::peer_lost); },
      [] { throw HookError("hook 'mine'", Failure::aborted); },
      [] { throw HookError("nothing is heard of it", Failure::timeout, 1); },
      // Only gloo reports what another rank's death did to a rendezvous.
      [] { throw RendezvousError("gloo cannot connect: Connection closed by peer"); }};
  for (const auto& echo : echoes) {
    SCOPED_TRACE(&echo - echoes);
    EXPECT_EQ(cause_of(echo, hook_of_1), 1);
  }
}

TEST(Launch, AnErrorOfOursIsJudgedByItsKindAndNotByItsText) {
  const auto later = [] { throw std::runtime_error("later"); };
  const std::function<void()> causes[]{
      [] { throw Error("Connection closed by peer"); },
      [] { throw HookError("rank 1: Broken pipe", Failure::other, 0); },
      [] { throw HookError("rank 1: it timed out", Failure::timeout); },
      [] { throw TimeoutError("Connection reset by peer"); },
      [] { throw RendezvousError("the host is unknown"); }};
  for (const auto& cause : causes) {
    SCOPED_TRACE(&cause - causes);
    EXPECT_EQ(cause_of(cause, later), 0);
  }
}

// The error is another library's, or the program records none.
TEST(Launch, AnErrorWithoutAKindIsJudgedByTheWordsOfThoseWhoConnect) {
  const auto later = [] { throw std::runtime_error("later"); };
  EXPECT_EQ(cause_of([] { throw std::runtime_error("Read error: Broken pipe"); }, later),
            1);
  EXPECT_EQ(cause_of([] { throw std::runtime_error("rank 1: ouch"); }, later), 0);
  EXPECT_EQ(cause_of(
                [] {
                  std::fprintf(stderr,
                               "it says: Application timeout caused pair closure\n");
                  _exit(1);
                },
                later),
            1);
}

TEST(Launch, AWorkerThatDiedWritingToItsLostPeerIsNotTheCause) {
  const LaunchError error = failure_of(2, [](int rank) {
    if (rank == 0) raise(SIGPIPE);
    usleep(200'000);
    _exit(5);
  });
  EXPECT_EQ(error.exit_code(), 5) << error.what();
}

TEST(Launch, AWorkerThatRecordedItsErrorAndWasEndedBeforeItsExitIsStillTheCause) {
  Shared shared;
  const LaunchError error = failure_of(2, [&](int rank) {
    if (rank == 0) {
      record_errors([] { throw std::runtime_error("first"); });
      shared.counts[0] = 1;
      while (true) pause();
    }
    shared.wait_for(0);
    throw std::runtime_error("Connection closed by peer");
  });
  ASSERT_TRUE(error.failure());
  EXPECT_EQ(error.failure()->rank, 0) << error.what();
  EXPECT_EQ(error.exit_code(), 1);
}

TEST(Launch, AWorkerThatWasEndedBeforeItsExitKeepsTheExitCodeThatItRecorded) {
  Shared shared;
  const LaunchError error = failure_of(2, [&](int rank) {
    if (rank == 0) {
      record_errors([] { throw ConfigError("the option is wrong"); });
      shared.counts[0] = 1;
      while (true) pause();
    }
    shared.wait_for(0);
    throw ConfigError("the option is wrong");
  });
  ASSERT_TRUE(error.failure());
  EXPECT_EQ(error.failure()->rank, 0) << error.what();
  EXPECT_EQ(error.exit_code(), 2) << error.what();
}

TEST(Launch, RestartsAllWorkersWithTheCountSet) {
  Shared shared;
  launch(2,
         [&](int rank) {
           ++shared.counts[rank];
           // The store is a new one, so a group can be made again.
           init_process_group({.backend = "gloo"}).barrier();
           const std::string count = std::getenv("TORCHELASTIC_RESTART_COUNT");
           if (rank == 1 && count != "2") throw std::runtime_error("not yet");
         },
         {.max_restarts = 3});
  EXPECT_EQ(shared.counts[0], 3);
  EXPECT_EQ(shared.counts[1], 3);
}

TEST(Launch, GivesUpAfterTheLastRestart) {
  Shared shared;
  const LaunchError error = failure_of(1,
                                       [&](int) {
                                         ++shared.counts[0];
                                         throw std::runtime_error("always");
                                       },
                                       {.max_restarts = 2});
  EXPECT_EQ(shared.counts[0], 3);
  EXPECT_EQ(error.failure()->attempt, 2);
}

TEST(Launch, AWorkerThatIgnoresSIGTERMIsKilledAfterTheGraceTime) {
  Shared shared;
  const LaunchError error = failure_of(2,
                                       [&](int rank) {
                                         signal(SIGTERM, SIG_IGN);
                                         if (rank == 1) {
                                           shared.wait_for(0);
                                           _exit(9);
                                         }
                                         shared.counts[0] = 1;
                                         while (true) pause();
                                       },
                                       {.grace = std::chrono::milliseconds(300)});
  EXPECT_EQ(error.exit_code(), 9);
  EXPECT_NE(std::string(error.what()).find("rank 0 ended by SIGKILL"), std::string::npos);
}

TEST(Launch, TheWallLimitEndsTheJob) {
  const LaunchError error =
      failure_of(2, [](int) { pause(); }, {.wall = std::chrono::milliseconds(200)});
  EXPECT_EQ(error.exit_code(), 124);
  EXPECT_FALSE(error.failure());
}

// The launcher looks for the job's processes among all of the host.
TEST(Launch, OtherProcessesThatEndMeanwhileDoNoHarm) {
  const pid_t busy = fork();
  if (busy == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      if (child > 0) waitpid(child, nullptr, 0);
    }
  }
  const launching::JobProcesses processes("none");
  for (int round = 0; round < 500; ++round) EXPECT_NO_THROW(processes.living());
  kill(busy, SIGKILL);
  waitpid(busy, nullptr, 0);
}

TEST(Launch, AFunctionIsRefusedInAProcessWithThreads) {
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) usleep(1'000);
  });
  EXPECT_THROW(launch(1, [](int) {}), ConfigError);
  stop = true;
  thread.join();
}

TEST(Launch, BadOptionsAreRefused) {
  const auto nothing = [](int) {};
  EXPECT_THROW(launch(0, nothing), ConfigError);
  EXPECT_THROW(launch(1, nothing, {.nodes = 2, .master_port = 29500}), ConfigError);
  EXPECT_THROW(launch(1, nothing, {.node_rank = 1}), ConfigError);
  EXPECT_THROW(launch(1, nothing, {.max_restarts = -1}), ConfigError);
  EXPECT_THROW(launch(2, nothing, {.local_ranks_filter = {2}}), ConfigError);
  EXPECT_THROW(launch(1, nothing, {.log_dir = "/proc/nowhere"}), ConfigError);
}

TEST(Launch, LeavesNoDescriptorChildOrSignalMaskBehind) {
  const auto descriptors = [] {
    const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  const auto before = descriptors();
  launch(2, [](int) {});
  failure_of(2, [](int rank) { _exit(rank); });
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  sigset_t mask;
  sigprocmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGINT));
  EXPECT_FALSE(sigismember(&mask, SIGPIPE));
}

TEST(Launch, ASignalToTheLauncherEndsTheJobWith128PlusIt) {
  const LaunchError error = failure_of(2, [](int rank) {
    if (rank == 0) kill(getppid(), SIGTERM);
    pause();
  });
  EXPECT_EQ(error.exit_code(), 128 + SIGTERM);
  EXPECT_FALSE(error.failure());
}

TEST(Launch, NothingListensBeyondLoopback) {
  launch(2, [](int rank) {
    ProcessGroup group = init_process_group({.backend = "gloo"});
    if (rank == 0) {
      // Finds this process's listening sockets, state 0A: the ports of the store and gloo.
      const auto result = testing::run_command({"bash", "-c",
                                                "port=$(printf %04X $MASTER_PORT); grep -h "
                                                "\":$port \" /proc/net/tcp /proc/net/tcp6 "
                                                "| awk '$4 == \"0A\" {print $2}'"});
      const std::string expected = "0100007F:";
      if (result.out.rfind(expected, 0) != 0)
        throw std::runtime_error("listens: " + result.out);
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace brigade
