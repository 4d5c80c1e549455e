// The reports of a DdpCore to code that works beside it.
#include "ddp/models.h"

namespace brigade::testing {
namespace {

void train_once(DistributedDataParallel<NetImpl>& ddp, const ProcessGroup& group) {
  ddp->zero_grad();
  torch::mse_loss(ddp(share(batch(1, 12), group)), share(target(1, 12), group)).backward();
}

size_t parameters_in(const std::vector<std::vector<at::Tensor>>& buckets) {
  size_t count = 0;
  for (const auto& bucket : buckets) count += bucket.size();
  return count;
}

TEST(CoreFacts, SayWhichParametersAreTrainedAndWhichAreSparse) {
  run_ranks(1, [](ProcessGroup group) {
    at::Tensor trained = at::ones({2}).requires_grad_(true), frozen = at::ones({2}),
               sparse = at::ones({4, 2}).requires_grad_(true);
    DdpModel model;
    model.parameters = {{"trained", trained}, {"frozen", frozen}, {"sparse", sparse, true}};
    DdpCore core(model, group);
    EXPECT_TRUE(core.trains(trained));
    EXPECT_FALSE(core.trains(frozen));
    EXPECT_FALSE(core.trains(at::ones({2})));
    EXPECT_EQ(core.sparse_gradients(), (std::vector<bool>{false, true}));
    EXPECT_EQ(core.parameter_names(), (std::vector<std::string>{"trained", "sparse"}));
  });
}

TEST(CoreWatch, KnowsWhenTheModelJoinsAndOutlivesIt) {
  run_ranks(2, [](ProcessGroup group) {
    DdpCore::ModelHandle watch;
    EXPECT_FALSE(watch.joining());
    EXPECT_TRUE(watch.final_buckets().empty());
    {
      Net net = seeded();
      DistributedDataParallel ddp(net, group);
      watch = ddp->core().handle();
      EXPECT_FALSE(watch.joining());
      bool inside = false;
      ddp->join([&] { inside = watch.joining(); });
      EXPECT_TRUE(inside);
      EXPECT_FALSE(watch.joining());
    }
    EXPECT_FALSE(watch.joining());
    EXPECT_TRUE(watch.final_buckets().empty());
  });
}

TEST(CoreWatch, ShowsTheBucketsOnceTheyAreFinal) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    DistributedDataParallel ddp(net, group);
    const DdpCore::ModelHandle watch = ddp->core().handle();
    EXPECT_TRUE(watch.final_buckets().empty());
    train_once(ddp, group);
    EXPECT_TRUE(watch.final_buckets().empty());
    ddp->core().rebuild_buckets();  // or the next forward pass
    const auto buckets = watch.final_buckets();
    EXPECT_EQ(parameters_in(buckets), ddp->core().parameters().size());
    const auto names = ddp->logging_data().bucket_parameters;
    ASSERT_EQ(buckets.size(), names.size());
    for (size_t i = 0; i < buckets.size(); ++i) {
      ASSERT_EQ(buckets[i].size(), names[i].size());
      for (size_t j = 0; j < names[i].size(); ++j)
        EXPECT_TRUE(buckets[i][j].is_same(net->named_parameters()[names[i][j]]));
    }
    train_once(ddp, group);
    EXPECT_EQ(watch.final_buckets().size(), buckets.size());
  });
}

}  // namespace
}  // namespace brigade::testing
