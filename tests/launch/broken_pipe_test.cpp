// A peer that dies while this rank writes to it must be an exception, not SIGPIPE.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "brigade/process_group.h"
#include "launch/child.h"
#include "support/reserved_port.h"

namespace brigade {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::Outcome;
using testing::ReservedPort;

ProcessGroup join(const ReservedPort& port, int rank) {
  return init_process_group({.backend = "gloo",
                             .init_method = "tcp://127.0.0.1:" + port.number(),
                             .rank = rank,
                             .world_size = 2,
                             .timeout = 60s});
}

// Ends without notice, as in a crash, during its peer's all-reduce.
void reduce_until_the_end(const ReservedPort& port, int rank) {
  const ProcessGroup group = join(port, rank);
  raise(SIGPIPE);  // which gloo's next write would do only if it is early enough
  at::Tensor large = at::ones({1 << 20});
  for (int round = 0; round < 1000; ++round) {
    if (rank == 1 && round == 3) kill(getpid(), SIGKILL);
    group.all_reduce(large);
  }
}

TEST(BrokenPipe, APeerThatDiesIsAnExceptionAndNoSignal) {
  for (int round = 0; round < 3; ++round) {
    const ReservedPort port;
    Child survivor({}, [&] { reduce_until_the_end(port, 0); });
    Child dying({}, [&] { reduce_until_the_end(port, 1); });
    EXPECT_EQ(dying.finish().code, 128 + SIGKILL);
    const Outcome outcome = survivor.finish();
    ASSERT_EQ(outcome.code, 6) << "expected an exception; signals are 128 + number\n"
                               << outcome.text;
    EXPECT_FALSE(outcome.text.empty());
  }
}

volatile sig_atomic_t own_handler_ran = 0;

TEST(BrokenPipe, AProgramsOwnHandlerStays) {
  const ReservedPort port;
  const auto body = [&](int rank) {
    signal(SIGPIPE, [](int) { own_handler_ran = 1; });
    const ProcessGroup group = join(port, rank);
    raise(SIGPIPE);
    if (own_handler_ran != 1) throw Error("the handler was replaced");
    group.barrier();
  };
  Child one({}, [&] { body(0); }), two({}, [&] { body(1); });
  for (Child* child : {&one, &two}) {
    const Outcome outcome = child->finish();
    EXPECT_EQ(outcome.code, 0) << outcome.text;
  }
}

// It has no peer to lose, and its output may well go to `head`.
TEST(BrokenPipe, AGroupOfOneLeavesTheSignalAsItIs) {
  Child alone({}, [] {
    const ProcessGroup group = init_process_group();
    raise(SIGPIPE);
  });
  EXPECT_EQ(alone.finish().code, 128 + SIGPIPE);
}

}  // namespace
}  // namespace brigade
