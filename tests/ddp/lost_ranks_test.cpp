// In a model without a hook, the other ranks name the rank that is missing from a step.
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "base/exception_text.h"
#include "brigade/launch.h"
#include "ddp/models.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

void make_step(DistributedDataParallel<NetImpl>& ddp, const ProcessGroup& group) {
  ddp->zero_grad();
  torch::mse_loss(ddp(share(batch(1, 12), group)), share(target(1, 12), group)).backward();
}

std::string failure_of_step(DistributedDataParallel<NetImpl>& ddp,
                            const ProcessGroup& group) {
  try {
    make_step(ddp, group);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error of brigade's";
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

TEST(LostRanks, OneThatIsStoppedInAStepIsNamedByTheOthers) {
  run_ranks(3,
            [](ProcessGroup group) {
              const auto pids = group.gather_texts("pids", std::to_string(getpid()));
              Net net = seeded();
              DistributedDataParallel ddp(net, group);
              for (int step = 0; step < 2; ++step) make_step(ddp, group);
              if (group.rank() == 1) raise(SIGSTOP);
              const std::string text = failure_of_step(ddp, group);
              // Only now may it go on, and gets the same error.
              if (group.rank() == 0) kill(std::stoi(pids[1]), SIGCONT);
              expect_says(text, "all-reduce, step 2: ");
              expect_says(text, "nothing is heard of rank 1: stopped, lost");
              EXPECT_EQ(failure_of_step(ddp, group), text) << "the first cause is kept";
            },
            {.timeout = std::chrono::seconds(1)});
}

// The processes' connections end with them, so nobody waits for the time limit.
TEST(LostRanks, OneThatHasFewerBatchesIsNamedAndJoinIsRecommended) {
  for (const int short_one : {2, 0}) {
    run_ranks(3, [short_one](ProcessGroup group) {
      Net net = seeded();
      DistributedDataParallel ddp(net, group);
      for (int step = 0; step < 2; ++step) make_step(ddp, group);
      if (group.rank() == short_one) return;
      const std::string text = failure_of_step(ddp, group);
      expect_says(text, ", step 2: rank " + std::to_string(short_one) + " is gone");
      expect_says(text, "join()");
      EXPECT_EQ(text.find("gloo"), std::string::npos) << text;
    });
  }
}

// Three ranks train; rank 1 is killed in the middle of a backward pass, and the others
// write their errors.
void train_until_a_peer_is_lost(const std::string& folder, int rank) {
  signal(SIGTERM, SIG_IGN);  // the launcher's: survivors must end by themselves
  const ProcessGroup group = init_process_group({.backend = "gloo"});
  Net net = seeded();
  DistributedDataParallel ddp(net, group);
  for (int step = 0; step < 2; ++step) make_step(ddp, group);
  if (rank == 1) {
    net->parameters().front().register_hook([](const at::Tensor& gradient) {
      kill(getpid(), SIGKILL);
      return gradient;
    });
  }
  std::ofstream told(folder + "/" + std::to_string(rank));
  try {
    make_step(ddp, group);
    told << "no error";
  } catch (const PeerLostError& error) {
    told << "lost " << error.rank().value_or(-1) << " " << error.what();
  } catch (const std::exception& error) {
    told << base::describe(error);
  }
}

TEST(LostRanks, OneThatIsKilledIsAPeerLostErrorOutOfBackwardThatNamesIt) {
  const TemporaryFolder folder;
  setenv("OMP_NUM_THREADS", "1", 0);
  try {
    launch(3, [&](int rank) { train_until_a_peer_is_lost(folder.path(), rank); },
           {.grace = std::chrono::seconds(20), .wall = std::chrono::minutes(2)});
    ADD_FAILURE() << "no LaunchError";
  } catch (const LaunchError& error) {
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, 1) << error.what();
  }
  std::string texts[2];
  for (const int rank : {0, 2}) {
    std::ifstream file(folder.path() + "/" + std::to_string(rank));
    std::getline(file, texts[rank / 2]);
    EXPECT_TRUE(texts[rank / 2].starts_with("lost 1 rank ")) << texts[rank / 2];
    expect_says(texts[rank / 2], "all-reduce, step 2: rank 1 is gone (Connection ");
  }
  EXPECT_EQ(texts[0], texts[1]) << "the ranks show different causes";
}

// It lives and may come later, so it counts as missing only at the time limit.
TEST(LostRanks, OneThatHasLeftTheLoopAndLivesIsNamedToo) {
  run_ranks(2,
            [](ProcessGroup group) {
              Net net = seeded();
              DistributedDataParallel ddp(net, group);
              for (int step = 0; step < 2; ++step) make_step(ddp, group);
              if (group.rank() == 1) return group.barrier(std::chrono::seconds(20));
              EXPECT_THROW(make_step(ddp, group), TimeoutError);
              const std::string text = failure_of_step(ddp, group);
              expect_says(text, "nothing is heard of rank 1: ");
              expect_says(text, "join()");
              group.barrier();
            },
            {.timeout = std::chrono::seconds(1)});
}

}  // namespace
}  // namespace brigade::testing
