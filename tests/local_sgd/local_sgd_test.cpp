// Local SGD on four ranks as two hosts of two: the optimizer around an optimizer, and the
// object with hook, averager and warm-up.
#include "brigade/local_sgd.h"

#include <gtest/gtest.h>

#include "brigade/checkpoint.h"
#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "local_sgd/small_net.h"
#include "local_sgd/warnings.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using namespace testing;
using optim::LocalSGD;
using optim::PostLocalSGDOptimizer;

std::shared_ptr<ModelAverager> periodic(const ProcessGroup& group) {
  return std::make_shared<PeriodicModelAverager>(
      group, PeriodicModelAveragerOptions{.period = 4, .warmup_steps = 10});
}
std::shared_ptr<ModelAverager> hierarchical(const ProcessGroup& group) {
  return std::make_shared<HierarchicalModelAverager>(
      group,
      HierarchicalModelAveragerOptions{.levels = {{2, 2}, {4, 4}}, .warmup_steps = 4});
}

TEST(PostLocalSGDOptimizer, UnderDdpEqualsTheOptimizerAlone) {
  run_ranks(4, [](ProcessGroup group) {
    for (auto make : {periodic, hierarchical}) {
      for (bool views : {false, true}) {
        const DdpOptions options{.gradient_as_bucket_view = views};
        DistributedDataParallel plain(small_net(), group, options);
        DistributedDataParallel wrapped(small_net(), group, options);
        torch::optim::SGD alone(plain->parameters(), 0.03);
        PostLocalSGDOptimizer optimizer(
            std::make_shared<torch::optim::SGD>(wrapped->parameters(), 0.03), make(group));
        for (int64_t step = 0; step < 20; ++step) {
          plain->zero_grad();
          loss_on(plain, group.rank(), step).backward();
          alone.step();
          optimizer.zero_grad();
          loss_on(wrapped, group.rank(), step).backward();
          optimizer.step();
          ASSERT_TRUE(same_bits(plain->parameters(), wrapped->parameters()));
        }
        EXPECT_EQ(optimizer.averager().step(), 20);
      }
    }
  });
}

TEST(PostLocalSGDOptimizer, ReloadsItsStepAndWarnsWhereThereIsNone) {
  const TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    const std::string file = folder.path() + "/" + std::to_string(group.rank());
    DistributedDataParallel ddp(small_net(), group);
    const auto sgd = [&] {
      return std::make_shared<torch::optim::SGD>(
          ddp->parameters(), torch::optim::SGDOptions(0.03).momentum(0.9));
    };
    PostLocalSGDOptimizer first(sgd(), periodic(group)), second(sgd(), periodic(group));
    for (int64_t step = 0; step < 12; ++step) {
      first.zero_grad();
      loss_on(ddp, group.rank(), step).backward();
      first.step();
    }
    torch::save(first, file);
    Warnings warnings;
    torch::load(second, file);
    EXPECT_EQ(second.averager().step(), 12);
    EXPECT_EQ(warnings.text(), "");
    EXPECT_EQ(second.optimizer().state().size(), first.optimizer().state().size());
    torch::save(first.optimizer(), file);
    torch::load(second, file);
    EXPECT_NE(warnings.text().find("has no step of an averager"), std::string::npos);
    EXPECT_EQ(second.averager().step(), 0);
    EXPECT_NE(refusal([&] {
                PostLocalSGDOptimizer(nullptr, periodic(group));
              }).find("the optimizer is null"),
              std::string::npos);
  });
}

// Computes local SGD in float64 in one process: steps every rank's net with the mean of all
// gradients during the warm-up, then with that of its pair.
std::vector<at::Tensor> reference(int rank, int64_t steps, int64_t warmup, int64_t period) {
  std::vector<torch::nn::Sequential> nets;
  for (int r = 0; r < 4; ++r) nets.push_back(small_net(at::kDouble));
  at::NoGradGuard no_grad;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<std::vector<at::Tensor>> gradients;
    for (int r = 0; r < 4; ++r) {
      at::AutoGradMode grad(true);
      nets[r]->zero_grad();
      loss_on(nets[r], r, step, at::kDouble).backward();
      gradients.push_back(gradients_of(nets[r]->parameters()));
    }
    const bool local = step >= warmup;
    for (int r = 0; r < 4; ++r) {
      for (size_t p = 0; p < gradients[r].size(); ++p) {
        at::Tensor mean = at::zeros_like(gradients[r][p]);
        for (int other = 0; other < 4; ++other)
          if (!local || other / 2 == r / 2) mean += gradients[other][p] / (local ? 2 : 4);
        nets[r]->parameters()[p].sub_(mean, 0.1);
      }
    }
    if (!local || (step - warmup) % period != 0) continue;
    for (size_t p = 0; p < nets[0]->parameters().size(); ++p) {
      at::Tensor mean = at::zeros_like(nets[0]->parameters()[p]);
      for (auto& net : nets) mean += net->parameters()[p] / 4;
      for (auto& net : nets) net->parameters()[p].copy_(mean);
    }
  }
  return copy_of(nets[rank]->parameters());
}

TEST(LocalSGD, TrainsAsTheReferenceInFloat64) {
  run_ranks(4, [](ProcessGroup group) {
    const int64_t warmup = 3, period = 4;
    for (int64_t steps : {3, 4, 6, 9, 12}) {
      SCOPED_TRACE(std::to_string(steps) + " steps");
      DistributedDataParallel ddp(small_net(at::kDouble), group,
                                  {.bucket_cap_mb = kSmallBuckets});
      torch::optim::SGD optimizer(ddp->parameters(), 0.1);
      LocalSGD local(
          ddp, optimizer,
          {.warmup_steps = warmup, .period = period, .subgroup = group.new_subgroups(2)});
      for (int64_t step = 0; step < steps; ++step) {
        EXPECT_EQ(local.steps(), step);
        EXPECT_EQ(local.is_local(), step >= warmup);
        ddp->zero_grad();
        loss_on(ddp, group.rank(), step, at::kDouble).backward();
        local.step();
      }
      EXPECT_LT(distance(ddp->parameters(), reference(group.rank(), steps, warmup, period)),
                1e-12);
      const bool just_met = steps <= warmup || (steps - 1 - warmup) % period == 0;
      EXPECT_EQ(same_on(group, ddp->parameters()), just_met);
      local.finish();
      EXPECT_TRUE(same_on(group, ddp->parameters()));
    }
  });
}

struct TakesATensorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& data) { return layer->forward(data); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 2));
};
TORCH_MODULE(TakesATensor);

TEST(LocalSGD, TakesAModelWhoseForwardNeedsAnArgument) {
  run_ranks(1, [](ProcessGroup group) {
    DistributedDataParallel ddp(TakesATensor(), group);
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    LocalSGD local(ddp, optimizer, {.period = 2});
    ddp->forward(at::ones({1, 2})).sum().backward();
    local.step();
    EXPECT_EQ(local.steps(), 1);
  });
}

TEST(LocalSGD, WithAPeriodOfOneEqualsDdp) {
  run_ranks(4, [](ProcessGroup group) {
    DistributedDataParallel plain(small_net(at::kDouble), group);
    DistributedDataParallel ddp(small_net(at::kDouble), group);
    torch::optim::SGD alone(plain->parameters(), 0.1), optimizer(ddp->parameters(), 0.1);
    Warnings warnings;
    LocalSGD local(ddp, optimizer, {.period = 1, .post_local_gradient_allreduce = false});
    EXPECT_NE(warnings.text().find("period is 1"), std::string::npos);
    for (int64_t step = 0; step < 10; ++step) {
      plain->zero_grad();
      loss_on(plain, group.rank(), step, at::kDouble).backward();
      alone.step();
      ddp->zero_grad();
      loss_on(ddp, group.rank(), step, at::kDouble).backward();
      local.step();
      EXPECT_LT(distance(plain->parameters(), ddp->parameters()), 1e-14);
    }
  });
}

template <class Make>
std::vector<at::Tensor> train_with(ProcessGroup group, const std::string& spec, Make make,
                                   DdpOptions options = {.bucket_cap_mb = kSmallBuckets}) {
  DistributedDataParallel ddp(small_net(), group, options);
  if (!spec.empty()) ddp->set_hook(make_hook(spec));
  auto step = make(ddp);
  for (int64_t pass = 0; pass < 5; ++pass) {
    ddp->zero_grad();
    loss_on(ddp, group.rank(), pass).backward();
    step();
  }
  return copy_of(ddp->parameters());
}

TEST(LocalSGD, StepsAnyOptimizerInOrAfterTheBackwardPassWithTheSameBits) {
  run_ranks(4, [](ProcessGroup group) {
    const optim::LocalSGDOptions options{
        .warmup_steps = 2, .period = 3, .subgroup = group.new_subgroups(2)};
    const auto of_torch = train_with(group, "", [&](auto& ddp) {
      auto sgd = std::make_shared<torch::optim::SGD>(ddp->parameters(), 0.1);
      auto local = std::make_shared<LocalSGD>(ddp, *sgd, options);
      return [sgd, local] { local->step(); };
    });
    const auto of_ours = train_with(group, "", [&](auto& ddp) {
      auto sgd = std::make_shared<optim::SGD>(optim::SGDOptions{.lr = 0.1});
      auto local = std::make_shared<LocalSGD>(ddp, *sgd, options);
      return [sgd, local] { local->step(); };
    });
    const auto in_backward = train_with(group, "", [&](auto& ddp) {
      optim::apply_optimizer_in_backward(
          ddp, std::make_shared<optim::SGD>(optim::SGDOptions{.lr = 0.1}));
      auto local = std::make_shared<LocalSGD>(ddp->core(), options);
      return [local] { local->step(); };
    });
    EXPECT_LT(distance(of_torch, of_ours), 1e-6);
    EXPECT_TRUE(same_bits(of_ours, in_backward));
    EXPECT_FALSE(same_on(group, of_torch)) << "the fifth step meets nobody";
  });
}

TEST(LocalSGD, GoesOnUsingTheHookThatTheModelHas) {
  run_ranks(4, [](ProcessGroup group) {
    const auto train = [&](const std::string& spec, int64_t warmup) {
      int64_t bytes = 0;
      auto parameters = train_with(group, spec, [&](auto& ddp) {
        auto sgd = std::make_shared<torch::optim::SGD>(ddp->parameters(), 0.1);
        auto local = std::make_shared<LocalSGD>(
            ddp, *sgd,
            optim::LocalSGDOptions{
                .warmup_steps = warmup, .period = 100, .subgroup = group.new_subgroups(2)});
        return [sgd, local, &bytes] { local->step(), bytes = local->bytes_sent(); };
      });
      return std::pair(parameters, bytes);
    };
    const auto [exact, exact_bytes] = train("", 100);
    const auto half = train("fp16", 100).first;
    EXPECT_LT(distance(exact, half), 1e-3);
    EXPECT_GT(distance(exact, half), 0);
    // With two ranks a rank sends 2/3 of what it sends with four.
    const int64_t local_bytes = train("", 1).second;
    EXPECT_LT(local_bytes, exact_bytes * 0.95);
  });
}

// A run of LocalSGD, with the data for its checkpoint.
struct LocalRun {
  LocalRun(ProcessGroup group, DdpOptions options, optim::LocalSGDOptions local_options)
      : group(group),
        net(small_net()),
        ddp(net, group, options),
        optimizer(net->parameters(), 0.01) {
    ddp->set_hook(make_hook("int8"));
    local.emplace(ddp, optimizer, local_options);
  }
  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      ddp->zero_grad();
      loss_on(ddp, group.rank(), step).backward();
      local->step();
    }
  }
  std::vector<CheckpointPart> parts() {
    return {per_rank(model_part(*net)), per_rank(optimizer_part(optimizer, *net)),
            hook_part(ddp->core()), bucket_part(ddp->core()), local_sgd_part(*local)};
  }
  ProcessGroup group;
  torch::nn::Sequential net;
  DistributedDataParallel<torch::nn::SequentialImpl> ddp;
  torch::optim::AdamW optimizer;
  std::optional<LocalSGD> local;
};

TEST(LocalSGD, ACheckpointBetweenTwoMeansChangesNoBit) {
  const TemporaryFolder folder;
  run_ranks(4, [&](ProcessGroup group) {
    const optim::LocalSGDOptions options{
        .warmup_steps = 2, .period = 4, .subgroup = group.new_subgroups(2)};
    DdpOptions ddp{.bucket_cap_mb = kSmallBuckets};
    LocalRun whole(group, ddp, options), first(group, ddp, options);
    whole.train(0, 10);
    first.train(0, 5);
    save_checkpoint(folder.path(), 5, group, first.parts());
    ddp.first_buckets = find_checkpoint(folder.path())->buckets;
    LocalRun second(group, ddp, options);
    EXPECT_EQ(load_checkpoint(folder.path(), group, second.parts()), 5);
    EXPECT_EQ(second.local->steps(), 5);
    second.train(5, 10);
    EXPECT_FALSE(same_on(group, copy_of(whole.net->parameters()))) << "a step in between";
    EXPECT_TRUE(same_bits(whole.net->parameters(), second.net->parameters()));
    PeriodicModelAverager averager(group, {.period = 4}), other(group, {.period = 4});
    averager.set_step(7);
    const std::vector<CheckpointPart> saved{averager_part(averager)},
        loaded{averager_part(other)};
    save_checkpoint(folder.path(), 6, group, saved);
    load_checkpoint(folder.path(), group, loaded);
    EXPECT_EQ(other.step(), 7);
  });
}

TEST(LocalSGD, FindsOutWhoForgotIt) {
  run_ranks(2, [](ProcessGroup group) {
    DistributedDataParallel ddp(small_net(), group);
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    auto local =
        std::make_unique<LocalSGD>(ddp, optimizer, optim::LocalSGDOptions{.period = 4});
    const auto pass = [&] { loss_on(ddp, group.rank(), 0).backward(); };
    const auto complaint = [](auto&& body) {
      try {
        body();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("none");
    };
    for (int i = 0; i < 64; ++i) pass();
    EXPECT_NE(complaint(pass).find("64 backward passes since LocalSGD::step()"),
              std::string::npos);
    local->step();
    EXPECT_EQ(complaint(pass), "none");
    const auto hook = ddp->hook();
    ddp->set_hook(make_hook("fp16"));
    EXPECT_NE(complaint([&] { local->step(); }).find("the model's hook is 'fp16'"),
              std::string::npos);
    ddp->set_hook(hook);
    local.reset();
    EXPECT_NE(complaint(pass).find("LocalSGD is gone"), std::string::npos);
  });
}

TEST(LocalSGD, IsRefusedInsideOfJoinOnEveryRankAlsoWithoutInput) {
  run_ranks(2, [](ProcessGroup group) {
    DistributedDataParallel ddp(small_net(), group);
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    LocalSGD local(ddp, optimizer, {.period = 2});
    const auto train = [&](int64_t steps) {
      for (int64_t step = 0; step < steps; ++step) {
        ddp->zero_grad();
        loss_on(ddp, group.rank(), step).backward();
        local.step();
      }
    };
    const std::string text = refusal([&] { ddp->join([&] { train(group.rank()); }); });
    EXPECT_NE(text.find("LocalSGD can't go with join()"), std::string::npos) << text;
  });
}

TEST(LocalSGD, RefusesBadOptionsAndSaysWhatIsRight) {
  run_ranks(2, [](ProcessGroup group) {
    DistributedDataParallel ddp(small_net(), group);
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    const auto with = [&](optim::LocalSGDOptions options) {
      return refusal([&] { LocalSGD(ddp, optimizer, options); });
    };
    EXPECT_NE(with({}).find("period is 0 and levels has 0, but exactly one"),
              std::string::npos);
    EXPECT_NE(with({.period = 2, .levels = {{2, 2}}}).find("exactly one"),
              std::string::npos);
    EXPECT_NE(with({.period = -2}).find("period is -2, but must be 1 or more"),
              std::string::npos);
    EXPECT_NE(with({.warmup_steps = -1, .period = 2}).find("warmup_steps is -1"),
              std::string::npos);
    EXPECT_EQ(ddp->hook(), nullptr) << "what is refused changes nothing";
  });
}

}  // namespace
}  // namespace brigade
