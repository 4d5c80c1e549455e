// Failures of a hook, seen from the training loop: every rank gets an exception with the
// cause in time, again and again, until reset() makes the model trainable.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "brigade/brigade.h"
#include "brigade/launch.h"
#include "hooks/bag.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

// Time limits of the group: long where nothing should wait for it, short where it must end
// an endless wait.
constexpr milliseconds kLong{20'000};
constexpr milliseconds kShort{4000};
const Shapes kShapes{{12, 11}, {7}, {30, 20}};

enum class Mistake {
  none,
  throws_at_once,
  throws_between,
  throws_at_the_end,
  throws_no_exception,
  wrong_size,
  wrong_dtype,
  never_completes,
  trains_its_model,
  goes_back_again,
  sets_a_hook,
};

// Awaits for ever.
struct Never {
  bool await_ready() { return false; }
  void await_suspend(std::coroutine_handle<>) {}
  void await_resume() {}
};

// Computes an exact mean in two phases, and makes one mistake in bucket 1 when told to.
struct Clumsy {
  Mistake mistake = Mistake::none;
  int culprit = -1;  // -1: every rank
  Rig* rig = nullptr;

  // Makes mistakes that a hook must not make.
  void reenter(Mistake which) const {
    const at::AutoGradMode with_graph(true);
    if (which == Mistake::trains_its_model) rig->ddp->forward(rig->inputs(0)).backward();
    // For example of a loss that it kept; a penalty on the parameters needs no forward
    // pass.
    if (which == Mistake::goes_back_again)
      rig->ddp->core().parameters().front().square().sum().backward();
    if (which == Mistake::sets_a_hook) rig->ddp->set_hook(make_hook("fp16"));
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) {
    const bool now = bucket.index() == 1 && (culprit < 0 || culprit == comm.rank());
    const auto make = [&](Mistake which) { return now && mistake == which; };
    if (make(Mistake::throws_at_once)) throw std::runtime_error("ouch");
    if (now) reenter(mistake);
    at::Tensor mean = bucket.buffer().div_(comm.size());
    at::Tensor all = at::empty({comm.size() * mean.numel()}, mean.options());
    co_await comm.all_gather(mean, all);
    if (make(Mistake::throws_between)) throw std::runtime_error("ouch");
    if (make(Mistake::throws_no_exception)) throw 7;
    mean.copy_(all.view({comm.size(), -1}).sum(0));
    if (make(Mistake::never_completes)) co_await Never{};
    co_await comm.broadcast(mean, 0);
    if (make(Mistake::throws_at_the_end)) throw std::runtime_error("ouch");
    if (make(Mistake::wrong_size)) co_return at::ones({5});
    if (make(Mistake::wrong_dtype)) co_return mean.to(at::kHalf);
    co_return mean;
  }
  std::shared_ptr<Hook> hook() {
    return make_hook("clumsy", [this](Bucket bucket, Comm& comm) {
      return reduce(std::move(bucket), comm);
    });
  }
};

void expect_exact(Rig& rig, int64_t step) {
  EXPECT_LE(rig.error(rig.train(step), step), 1e-6);
}

// The text that training throws. A rank whose buckets were all complete gets it in the next
// pass.
std::string text_of_failure(Rig& rig, int64_t step) {
  for (int pass = 0; pass < 2; ++pass) {
    try {
      rig.train(step + pass);
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  return "no exception";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

// The same model fails, stays failed and recovers.
void expect_failure_and_recovery(Rig& rig, Clumsy& clumsy, Mistake mistake, int culprit,
                                 const std::string& reason) {
  expect_exact(rig, 0);
  const int64_t step = rig.ddp->hook_stats().total.steps;
  clumsy.mistake = mistake;
  clumsy.culprit = culprit;
  const std::string text = text_of_failure(rig, 1);
  expect_contains(text, "hook 'clumsy', bucket 1, step " + std::to_string(step));
  expect_contains(text, reason);
  if (culprit >= 0) expect_contains(text, "rank " + std::to_string(culprit) + ":");
  EXPECT_EQ(text_of_failure(rig, 2), text) << "the first cause is kept";
  // The texts go through the store, which no failure of a hook affects.
  for (const std::string& theirs : rig.group.gather_texts("failure", text))
    EXPECT_EQ(theirs, text) << "the ranks show different causes";
  clumsy.mistake = Mistake::none;
  rig.ddp->reset();
  for (int64_t after = 3; after < 6; ++after) expect_exact(rig, after);
}

struct FailureCase {
  Mistake mistake;
  const char* reason;
};
const FailureCase kMistakes[]{
    {Mistake::throws_at_once, ": ouch"},
    {Mistake::throws_between, ": ouch"},
    {Mistake::throws_at_the_end, ": ouch"},
    {Mistake::throws_no_exception, "an exception of unknown type"},
    {Mistake::wrong_size, "gave back 5 elements of float on cpu, but the bucket has"},
    {Mistake::wrong_dtype, "of c10::Half on cpu, but the bucket has"},
    {Mistake::trains_its_model, "forward: called by the hook of this very model"},
    {Mistake::goes_back_again, "backward: called by the hook of this very model"},
    {Mistake::sets_a_hook, "set_hook: a backward pass is under way"},
};

class FailingHook : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FailingHook, ::testing::Values(1, 2, 3));

TEST_P(FailingHook, EveryRankGetsTheCauseInTimeAndResetMakesTheModelTrainable) {
  run_ranks(GetParam(),
            [](ProcessGroup group) {
              Clumsy clumsy;
              Rig rig(group, "", kShapes);
              clumsy.rig = &rig;
              rig.ddp->set_hook(clumsy.hook());
              for (const FailureCase& c : kMistakes) {
                for (int culprit : {group.size() - 1, -1}) {
                  SCOPED_TRACE(c10::str("mistake ", static_cast<int>(c.mistake),
                                        ", culprit ", culprit));
                  expect_failure_and_recovery(rig, clumsy, c.mistake, culprit, c.reason);
                }
              }
            },
            {.timeout = kLong, .wall = std::chrono::minutes(2)});
}

TEST(FailingHooks, OneThatNeverCompletesFailsAtItsDeadline) {
  run_ranks(2,
            [](ProcessGroup group) {
              Clumsy clumsy;
              Rig rig(group, "", kShapes);
              rig.ddp->set_hook(clumsy.hook());
              expect_failure_and_recovery(rig, clumsy, Mistake::never_completes, -1,
                                          "not complete within the time limit of 4000 ms");
            },
            {.timeout = kShort});
}

// The others' collectives then reach the limit first, in any bucket.
TEST(FailingHooks, OneThatNeverCompletesOnOneRankEndsAllInTime) {
  run_ranks(2,
            [](ProcessGroup group) {
              Clumsy clumsy;
              Rig rig(group, "", kShapes);
              rig.ddp->set_hook(clumsy.hook());
              expect_exact(rig, 0);
              clumsy = {Mistake::never_completes, 1};
              const std::string text = text_of_failure(rig, 1);
              expect_contains(text, ": hook 'clumsy', bucket ");
              expect_contains(text, ", step 1: ");
              clumsy = {};
              rig.ddp->reset();
              for (int64_t after = 3; after < 6; ++after) expect_exact(rig, after);
            },
            {.timeout = kShort});
}

TEST(FailingHooks, AModelThatFailedIsTornDownCleanly) {
  for (Mistake mistake : {Mistake::throws_between, Mistake::never_completes}) {
    run_ranks(2,
              [mistake](ProcessGroup group) {
                Clumsy clumsy{mistake, 1};
                {
                  Rig rig(group, "", kShapes);
                  rig.ddp->set_hook(clumsy.hook());
                  expect_contains(text_of_failure(rig, 0), "hook 'clumsy'");
                }
                // The group still works: another model trains over it.
                Rig next(group, "fp16", kShapes);
                EXPECT_LE(next.error(next.train(0), 0), 1e-3);
              },
              {.timeout = kShort});
  }
}

// ---- what the ranks learn of a failure --------------------------------------------------

struct KindCase {
  std::function<void()> fail;
  Failure kind;
  std::optional<int> rank;  // rank 1 of three fails
};

const KindCase kKinds[]{
    {[] { throw std::runtime_error("Connection closed by peer"); }, Failure::other, 1},
    {[] { throw 7; }, Failure::other, 1},
    {[] { throw ConfigError("such"); }, Failure::config, 1},
    {[] { throw MismatchError("such"); }, Failure::mismatch, 1},
    {[] { throw RendezvousError("such"); }, Failure::rendezvous, std::nullopt},
    {[] { throw PeerLostError("such", 2); }, Failure::peer_lost, 2},
    {[] { throw HookError("such", Failure::aborted, 0); }, Failure::aborted, 0},
    // By then the others have given signs of life.
    {[] {
       std::this_thread::sleep_for(milliseconds(1500));
       throw TimeoutError("such");
     },
     Failure::timeout, std::nullopt},
};

void expect_kind(Rig& rig, const KindCase& wanted) {
  for (int pass = 0; pass < 2; ++pass) {
    try {
      rig.train(pass);
    } catch (const HookError& error) {
      EXPECT_EQ(error.kind(), wanted.kind) << error.what();
      EXPECT_EQ(error.rank(), wanted.rank) << error.what();
      expect_contains(error.what(), "rank 1: hook 'clumsy', bucket 1");
      return;
    }
  }
  ADD_FAILURE() << "no HookError";
}

TEST(FailingHooks, EveryRankLearnsTheSameKindAndWhoseFailureItWas) {
  run_ranks(3,
            [](ProcessGroup group) {
              Rig rig(group, "", kShapes);
              for (const KindCase& wanted : kKinds) {
                SCOPED_TRACE(&wanted - kKinds);
                rig.ddp->set_hook(
                    make_hook("clumsy", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
                      if (comm.rank() == 1 && bucket.index() == 1) wanted.fail();
                      co_return co_await average(std::move(bucket), comm);
                    }));
                expect_kind(rig, wanted);
                rig.ddp->reset();
              }
            },
            {.timeout = kLong});
}

// ---- differences between ranks ----------------------------------------------------------

TEST(DifferentHooks, AreFoundOutBeforeTheFirstGradientMovesAndCanBeCorrected) {
  run_ranks(2, [](ProcessGroup group) {
    const std::vector<std::pair<std::string, std::string>> pairs{
        {"fp16", "bf16"},
        {"powersgd:rank=1", "powersgd:rank=2"},
        {"powersgd:seed=1", "powersgd:seed=2"},
        {"powersgd:eps=0", "powersgd:eps=1e-8"},
        {"fp16+int8", "bf16+int8"},
        {"int8", ""},
        {"", "int8"}};
    for (const auto& [zero, one] : pairs) {
      SCOPED_TRACE("'" + zero + "' and '" + one + "'");
      Rig rig(group, group.rank() ? one : zero, kShapes);
      const auto print = [](const std::string& spec) {
        return spec.empty() ? "none" : make_hook(spec)->fingerprint();
      };
      try {
        rig.train(0);
        ADD_FAILURE() << "no exception";
      } catch (const MismatchError& error) {
        expect_contains(error.what(), "'" + print(zero) + "' on ranks 0");
        expect_contains(error.what(), "'" + print(one) + "' on ranks 1");
      }
      EXPECT_THROW(rig.train(0), MismatchError) << "found out once only";
      for (const at::Tensor& parameter : rig.bag->parameters_in_order)
        EXPECT_FALSE(parameter.grad().defined()) << "a gradient moved";
      rig.ddp->set_hook(make_hook("allreduce"));
      for (int64_t step = 1; step < 4; ++step) expect_exact(rig, step);
    }
  });
}

TEST(DifferentHooks, AHookThatOneRankTookAwayInTheMiddleIsFoundOut) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "allreduce", kShapes);
    expect_exact(rig, 0);
    rig.ddp->set_hook(group.rank() == 0 ? make_hook("allreduce") : nullptr);
    EXPECT_THROW(rig.train(1), MismatchError);
    rig.ddp->set_hook(make_hook("allreduce"));
    for (int64_t step = 2; step < 5; ++step) expect_exact(rig, step);
  });
}

// ---- set_hook at the wrong time ---------------------------------------------------------

TEST(SetHook, IsRefusedInTheMiddleOfABackwardPass) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* spec : {"", "fp16"}) {
      Rig rig(group, spec, kShapes);
      int refused = 0;
      rig.bag->parameters_in_order[1].register_hook([&](const at::Tensor& gradient) {
        try {
          rig.ddp->set_hook(make_hook("int8"));
        } catch (const Error& error) {
          expect_contains(error.what(), "set_hook: a backward pass is under way");
          ++refused;
        }
        return gradient;
      });
      for (int64_t step = 0; step < 2; ++step)
        EXPECT_LE(rig.error(rig.train(step), step), 1e-3);
      EXPECT_EQ(refused, 2);
    }
  });
}

// ---- a process that dies ----------------------------------------------------------------

// A survivor's error, written in `folder`.
void train_until_it_ends(const std::string& folder, int rank, int victim,
                         const std::string& spec) {
  signal(SIGTERM, SIG_IGN);  // the launcher's: survivors must end by themselves
  ProcessGroupOptions options;
  options.backend = "gloo";
  options.timeout = kLong;
  const ProcessGroup group = init_process_group(options);
  Rig rig(group, spec, kShapes);
  for (int64_t step = 0; step < 3; ++step) rig.train(step);
  group.barrier();
  const auto begin = steady_clock::now();
  std::string text = "no HookError";
  Failure kind = Failure::other;
  int lost = -1;
  try {
    for (int64_t step = 3; step < 1000; ++step) {
      if (rank == victim && step == 5) {
        rig.bag->parameters_in_order[1].register_hook([](const at::Tensor& gradient) {
          kill(getpid(), SIGKILL);
          return gradient;
        });
      }
      rig.train(step);
    }
  } catch (const HookError& error) {
    text = error.what();
    kind = error.kind();
    lost = error.rank().value_or(-1);
  }
  const auto took =
      std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin).count();
  std::ofstream(folder + "/" + std::to_string(rank))
      << took << " " << static_cast<int>(kind) << " " << lost << " " << text;
}

class KilledRank : public ::testing::TestWithParam<std::tuple<int, const char*>> {};
INSTANTIATE_TEST_SUITE_P(VictimAndHook, KilledRank,
                         ::testing::Combine(::testing::Values(0, 2),
                                            ::testing::Values("int8", "powersgd:start=0")));

TEST_P(KilledRank, EndsTheOthersInTimeWithACause) {
  const int victim = std::get<0>(GetParam());
  const std::string spec = std::get<1>(GetParam());
  testing::TemporaryFolder folder;
  setenv("OMP_NUM_THREADS", "1", 0);
  try {
    launch(3, [&](int rank) { train_until_it_ends(folder.path(), rank, victim, spec); },
           {.grace = milliseconds(10'000), .wall = milliseconds(100'000), .prefix = false});
    ADD_FAILURE() << "no LaunchError";
  } catch (const LaunchError& error) {
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, victim) << error.what();
    EXPECT_EQ(error.failure()->signal, SIGKILL) << error.what();
    EXPECT_EQ(error.exit_code(), 128 + SIGKILL);
  }
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    std::ifstream file(folder.path() + "/" + std::to_string(rank));
    long took = -1;
    int kind = -1, lost = -1;
    std::string text;
    file >> took >> kind >> lost;
    std::getline(file, text);
    EXPECT_EQ(kind, static_cast<int>(Failure::peer_lost)) << text;
    EXPECT_EQ(lost, victim) << text;
    EXPECT_GE(took, 0) << "rank " << rank << " did not end by itself";
    EXPECT_LT(took, kLong.count()) << text;
    expect_contains(text, ": hook '" + make_hook(spec)->name() + "', bucket ");
    expect_contains(text, "rank ");
  }
}

}  // namespace
}  // namespace brigade
