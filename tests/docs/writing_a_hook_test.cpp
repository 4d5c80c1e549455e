// The hooks of docs/writing_a_hook.md do what it says, and its mistakes fail as it says.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "../examples/custom_hooks.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

const Shapes kHookShapes{{17, 23}, {5}, {30, 30}, {600}};

std::string page() {
  std::ifstream file(BRIGADE_SOURCE_DIR "/docs/writing_a_hook.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_same_on_all_ranks(const ProcessGroup& group, const at::Tensor& mine) {
  at::Tensor theirs = mine.clone();
  group.broadcast(theirs, 0);
  EXPECT_TRUE(at::equal(mine, theirs)) << "replicas disagree";
}

class WritingAHook : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WritingAHook, ::testing::Values(1, 2, 3, 4));

TEST_P(WritingAHook, TheFunctionsAverage) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const std::map<std::string, double> tolerance{
        {"mean", 1e-5}, {"half", 2e-3}, {"scaled_half", 2e-3}, {"mixed", 8e-3}};
    for (const auto& [name, limit] : tolerance) {
      for (double cap : {testing::kOneBucketEach, 25.0}) {
        SCOPED_TRACE(name);
        Rig rig(group, "", kHookShapes, at::kFloat, {.bucket_cap_mb = cap});
        rig.ddp->set_hook(custom::make_hook(name));
        for (int64_t step = 0; step < 3; ++step) {
          const auto gradients = rig.train(step);
          EXPECT_LE(rig.error(gradients, step), limit);
          for (const auto& gradient : gradients) expect_same_on_all_ranks(group, gradient);
        }
      }
    }
  });
}

TEST(WritingAHookAlone, ScaledHalfStandsNumbersThatHalfDoesNot) {
  run_ranks(2, [](ProcessGroup group) {
    for (double scale : {1e9, 1e-12}) {
      Rig rig(group, "", {{600}});
      rig.ddp->set_hook(custom::make_hook("scaled_half"));
      const at::Tensor input = rig.inputs(0)[0] * scale;
      const at::Tensor result = rig.train_on({input})[0].to(at::kDouble) / scale;
      EXPECT_LE(rig.error({result}, 0), 2e-3) << scale;
    }
  });
}

// The sum of all results approaches that of the inputs: nothing is lost for good.
TEST_P(WritingAHook, TopKLosesNothing) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig rig(group, "", kHookShapes, at::kFloat, {.bucket_cap_mb = 25});
    rig.ddp->set_hook(custom::make_hook("topk"));
    std::vector<at::Tensor> sums;
    constexpr int kSteps = 60;
    for (int step = 0; step < kSteps; ++step) {
      const auto gradients = rig.train(0);
      for (size_t index = 0; index < gradients.size(); ++index) {
        expect_same_on_all_ranks(group, gradients[index]);
        if (step == 0) sums.push_back(at::zeros_like(gradients[index]));
        sums[index] += gradients[index] / kSteps;
      }
    }
    EXPECT_LE(rig.error(sums, 0), 0.2);
    const HookTraffic traffic = rig.ddp->hook_stats().last_step;
    const int64_t n = 17 * 23 + 5 + 30 * 30 + 600, k = 1 + n / 10;
    EXPECT_EQ(traffic.bytes_sent, (group.size() - 1) * k * 8) << "as the page says";
  });
}

TEST_P(WritingAHook, TopKsStateMakesAResumedRunEqual) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    Rig whole(group, "", kHookShapes), first(group, "", kHookShapes);
    for (Rig* rig : {&whole, &first}) {
      rig->ddp->set_hook(custom::make_hook("topk"));
      for (int64_t step = 0; step < 3; ++step) rig->train(step);
    }
    DdpOptions options{.bucket_cap_mb = testing::kOneBucketEach};
    options.first_buckets = first.ddp->logging_data().bucket_parameters;
    Rig second(group, "", kHookShapes, at::kFloat, options);
    second.ddp->set_hook(custom::make_hook("topk"));
    second.ddp->hook()->load_state(first.ddp->hook()->state());
    for (int64_t step = 3; step < 6; ++step) {
      const auto expected = whole.train(step), resumed = second.train(step);
      for (size_t index = 0; index < expected.size(); ++index)
        EXPECT_TRUE(at::equal(expected[index], resumed[index]));
    }
  });
}

TEST(WritingAHookAlone, TopKRecoversFromAStepThatIsNotFinite) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "", {{40, 30}});
    rig.ddp->set_hook(custom::make_hook("topk"));
    at::Tensor bad = rig.inputs(0)[0];
    if (group.rank() == 1) bad.fill_(std::nan(""));
    EXPECT_FALSE(at::isfinite(rig.train_on({bad})[0]).all().item<bool>());
    EXPECT_TRUE(at::isfinite(rig.train(1)[0]).all().item<bool>());
  });
}

TEST(WritingAHookAlone, TopKRefusesADensityOutOfRange) {
  EXPECT_THROW(custom::TopK(0), ConfigError);
  EXPECT_THROW(custom::TopK(1.5), ConfigError);
}

// ---- mistakes

// Returns the error of a hook on every rank, which the page quotes.
std::string error_of(const ProcessGroup& group, const std::shared_ptr<Hook>& hook) {
  Rig rig(group, "", {{10}});
  rig.ddp->set_hook(hook);
  try {
    rig.train(0);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return "no error";
}

Task<at::Tensor> wrong_size(Bucket bucket, Comm& comm) {
  at::Tensor all = at::empty(15, bucket.buffer().options());
  co_await comm.all_gather(bucket.buffer(), all);
  co_return bucket.buffer();
}

Task<at::Tensor> wrong_type(Bucket bucket, Comm& comm) {
  at::Tensor small = bucket.buffer().to(at::kHalf);
  co_await comm.all_reduce(small);
  co_return small;
}

Task<at::Tensor> one_sided(Bucket bucket, Comm& comm) {
  if (comm.rank() == 0) co_await comm.all_reduce(bucket.buffer());
  co_return bucket.buffer();
}

Task<at::Tensor> too_long(Bucket bucket, Comm& comm) {
  for (int round = 0; round < 20; ++round) co_await comm.all_reduce(bucket.buffer());
  co_return bucket.buffer();
}

TEST(WritingAHookAlone, MistakesFailWithTheTextsThatThePageShows) {
  run_ranks(2, [](ProcessGroup group) {
    for (const auto& [name, function] :
         std::map<std::string, Task<at::Tensor> (*)(Bucket, Comm&)>{
             {"wrong_size", wrong_size},
             {"wrong_type", wrong_type},
             {"too_long", too_long}}) {
      const std::string text = error_of(group, make_hook(name, function));
      // Both ranks make the mistake; the page shows the case where rank 0 was first.
      const std::string shown = "rank 0" + text.substr(text.find(':'));
      EXPECT_NE(page().find(shown), std::string::npos) << "the page lacks:\n" << text;
    }
  });
}

TEST(WritingAHookAlone, ACollectiveThatOnlyOneRankAwaitsFailsWithinTheLimit) {
  run_ranks(2,
            [](ProcessGroup group) {
              const std::string text = error_of(group, make_hook("one_sided", one_sided));
              if (group.rank() != 0) return;
              // Between the two is the name of a group inside the library.
              for (const std::string part : {"rank 0: hook 'one_sided', bucket 0, step 0: ",
                                             "rank 1 of 2 did not come within 2 s"}) {
                EXPECT_NE(text.find(part), std::string::npos) << text;
                EXPECT_NE(page().find(part), std::string::npos)
                    << "the page lacks " << part;
              }
            },
            {.timeout = std::chrono::seconds(2)});
}

TEST(WritingAHookAlone, RanksWithDifferentHooksFindOut) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "", {{10}});
    const double density = group.rank() == 0 ? 0.1 : 0.2;
    rig.ddp->set_hook(std::make_shared<custom::TopK>(density));
    try {
      rig.train(0);
      ADD_FAILURE() << "trained";
    } catch (const MismatchError& error) {
      EXPECT_NE(page().find(error.what()), std::string::npos)
          << "the page does not quote:\n"
          << error.what();
    }
  });
}

}  // namespace
}  // namespace brigade
