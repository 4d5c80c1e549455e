// Stepping in the backward pass equals stepping after it.
#include <torch/torch.h>

#include <atomic>

#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "optim/fork.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

struct Setting {
  std::string hook = "allreduce";
  std::string optimizer = "adam:lr=0.01,weight_decay=0.1";
  DdpOptions ddp = {.bucket_cap_mb = kSmallBucket};
  // Says which steps use `second`.
  std::function<bool(int step)> use_second = [](int) { return true; };
  int micro_batches = 1;
  StepOptions step;
  int steps = 5;
  torch::ScalarType dtype = torch::kFloat;
  size_t buckets = 0;  // at the end; 0: any number
};
enum class How { after, hook, in_backward };

void accumulate(Ddp& ddp, const Setting& setting, int step) {
  for (int micro = 0; micro < setting.micro_batches; ++micro) {
    const int number = step * setting.micro_batches + micro;
    if (micro + 1 < setting.micro_batches) {
      auto guard = ddp->no_sync();
      backward(ddp, number, setting.use_second(step));
    } else {
      backward(ddp, number, setting.use_second(step));
    }
  }
}

void step_after(Ddp& ddp, optim::Optimizer& optimizer, const Setting& setting) {
  if (setting.step.clip_grad_norm)
    torch::nn::utils::clip_grad_norm_(ddp->core().parameters(),
                                      *setting.step.clip_grad_norm);
  for (const auto& parameter : ddp->core().parameters()) {
    if (!parameter.grad().defined()) continue;
    auto gradient = parameter.grad();
    if (setting.step.clip_grad_value) {
      gradient =
          gradient.clamp(-*setting.step.clip_grad_value, *setting.step.clip_grad_value);
    }
    optimizer.step_param(parameter, gradient);
  }
}

// The parameters after training.
std::vector<torch::Tensor> train(const ProcessGroup& group, const Setting& setting,
                                 How how) {
  Fork net = make_fork(setting.dtype);
  Ddp ddp(net, group, setting.ddp);
  auto optimizer = make_optimizer(setting.optimizer);
  optimizer->set_lr(net->last->parameters(), 0.004);
  auto hook = make_hook(setting.hook);
  if (how == How::hook) {
    hook = hook_then_optimizer(hook, optimizer, {}, setting.step);
  } else if (how == How::in_backward) {
    apply_optimizer_in_backward(ddp, optimizer, {}, setting.step);
  }
  ddp->set_hook(hook);
  for (int step = 0; step < setting.steps; ++step) {
    if (step == 3) optimizer->set_lr(0.002);
    ddp->zero_grad();
    accumulate(ddp, setting, step);
    if (how == How::after) step_after(ddp, *optimizer, setting);
  }
  if (how == How::in_backward) {
    for (const auto& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
  if (setting.buckets) {
    EXPECT_EQ(ddp->logging_data().bucket_bytes.size(), setting.buckets);
  }
  for (const auto& parameter : net->parameters()) {
    auto root = parameter.detach().clone(torch::MemoryFormat::Contiguous);
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, parameter)) << "replicas differ";
  }
  return net->parameters();
}

// Runs all settings one after the other in the same workers.
void expect_parity_of_all(int ranks, const std::vector<Setting>& settings,
                          bool both_views = true) {
  const auto expect_one = [](const ProcessGroup& group, Setting s, bool views) {
    s.ddp.gradient_as_bucket_view = views;
    auto after = train(group, s, How::after);
    const std::string what = s.hook + ", " + s.optimizer + (views ? ", views" : "");
    expect_same_bits(after, train(group, s, How::hook), what + ", hook");
    expect_same_bits(after, train(group, s, How::in_backward), what + ", in backward");
    EXPECT_FALSE(torch::equal(after[0], make_fork(s.dtype)->parameters()[0]));
  };
  run_ranks(ranks,
            [&](ProcessGroup group) {
              for (const Setting& setting : settings) {
                expect_one(group, setting, false);
                if (both_views) expect_one(group, setting, true);
              }
            },
            {.wall = std::chrono::minutes(2)});
}

void expect_parity(int ranks, const Setting& setting) {
  expect_parity_of_all(ranks, {setting});
}

TEST(OptimizerInBackward, EqualsHookThenOptimizerToTheLastBitForEveryHook) {
  for (int ranks : {1, 4}) {
    std::vector<Setting> settings;
    for (const HookEntry& entry : hook_table()) {
      if (entry.tolerance < 0) continue;  // noop: replicas differ
      std::string spec(entry.name);
      if (spec.find("powersgd") != std::string::npos) spec += ":start=1,min_rate=1";
      settings.push_back({.hook = spec});
    }
    expect_parity_of_all(ranks, settings, /*both_views=*/ranks == 4);
    expect_parity(ranks, {.hook = "fp16+powersgd:start=1,min_rate=1"});
  }
}

TEST(OptimizerInBackward, EqualsItForEveryOptimizer) {
  std::vector<Setting> settings;
  for (std::string_view name : optimizer_names())
    settings.push_back({.optimizer = std::string(name) + ":lr=0.01"});
  expect_parity_of_all(4, settings, /*both_views=*/false);
}

TEST(OptimizerInBackward, EqualsItWithOneBucketWithTwoAndWithSix) {
  std::vector<Setting> settings;
  for (const char* hook : {"allreduce", "int8"}) {
    for (auto [mib, buckets] :
         {std::pair(1.0, 1U), {0.0015, 2U}, {kSmallBucket / 16, 6U}}) {
      settings.push_back({.hook = hook, .ddp = {.bucket_cap_mb = mib}, .buckets = buckets});
    }
  }
  for (int ranks : {1, 4}) expect_parity_of_all(ranks, settings, /*both_views=*/false);
}

TEST(OptimizerInBackward, EqualsItInHalfAndInDoublePrecision) {
  for (auto dtype : {torch::kBFloat16, torch::kDouble}) expect_parity(2, {.dtype = dtype});
}

TEST(OptimizerInBackward, StepsOnlyWhenAccumulatedGradientsAreSynchronised) {
  for (int ranks : {1, 4}) expect_parity(ranks, {.micro_batches = 3});
}

TEST(OptimizerInBackward, PassesOverParametersThatNoRankUsed) {
  for (int ranks : {1, 4}) {
    Setting setting{.use_second = [](int step) { return step % 2 == 0; }};
    setting.ddp.find_unused_parameters = true;
    expect_parity(ranks, setting);
    setting.micro_batches = 2;
    expect_parity(ranks, setting);
  }
}

TEST(OptimizerInBackward, WorksWithAStaticGraph) {
  std::vector<Setting> settings;
  for (int micro_batches : {1, 2}) {
    for (bool use : {true, false}) {
      settings.push_back(
          {.use_second = [use](int) { return use; }, .micro_batches = micro_batches});
      settings.back().ddp.static_graph = true;
    }
  }
  for (int ranks : {1, 4}) expect_parity_of_all(ranks, settings);
}

TEST(OptimizerInBackward, ParametersThatOnlySomeRanksUsedStepOnAll) {
  run_ranks(3, [](ProcessGroup group) {
    for (bool views : {false, true}) {
      Setting setting{.use_second = [&](int step) { return step % 3 == group.rank(); }};
      setting.ddp.find_unused_parameters = true;
      setting.ddp.gradient_as_bucket_view = views;
      auto after = train(group, setting, How::after);
      expect_same_bits(after, train(group, setting, How::hook), "hook");
      expect_same_bits(after, train(group, setting, How::in_backward), "in backward");
    }
  });
}

TEST(OptimizerInBackward, ClipsByValue) {
  expect_parity(4, {.optimizer = "sgd:lr=0.5", .step = {.clip_grad_value = 0.01}});
}

void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                  const std::string& what) {
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-5, 1e-7)) << what << ", parameter " << i;
}

TEST(OptimizerInBackward, ClipsByTheNormOfAllGradients) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* hook : {"allreduce", "int8"}) {
      const bool views = std::string_view(hook) == "int8";
      Setting setting{.hook = hook,
                      .optimizer = "sgd:lr=0.5,momentum=0.9",
                      .micro_batches = 2,
                      .step = {.clip_grad_norm = 0.05}};
      setting.ddp.gradient_as_bucket_view = views;
      const auto after = train(group, setting, How::after);
      expect_close(after, train(group, setting, How::hook), "hook");
      expect_close(after, train(group, setting, How::in_backward), "in backward");
      setting.step = {};
      EXPECT_FALSE(torch::allclose(after[0], train(group, setting, How::after)[0], 1e-3))
          << "nothing was clipped";
    }
  });
}

TEST(OptimizerInBackward, RefusesClippingAtNothingWithTheReason) {
  run_ranks(1, [](ProcessGroup group) {
    auto sgd = std::make_shared<SGD>();
    const auto refused = [&](const StepOptions& options) {
      return thrown_text<ConfigError>(
          [&] { hook_then_optimizer(make_hook("fp16"), sgd, {}, options); });
    };
    expect_contains(refused({.clip_grad_norm = 0}),
                    "clip_grad_norm is 0.000000, but must be more than 0");
    expect_contains(refused({.clip_grad_value = -1}), "must be more than 0");
    Ddp ddp(make_fork(), group);
    expect_contains(thrown_text<ConfigError>([&] {
                      apply_optimizer_in_backward(ddp, sgd, {}, {.clip_grad_norm = -1});
                    }),
                    "clip_grad_norm");
  });
}

TEST(OptimizerInBackward, RanksWithoutInputLeftStepWithTheOthers) {
  run_ranks(3, [](ProcessGroup group) {
    for (bool unused : {false, true}) {
      std::vector<std::vector<torch::Tensor>> results;
      for (bool in_backward : {false, true}) {
        Fork net = make_fork();
        Ddp ddp(net, group,
                {.find_unused_parameters = unused, .bucket_cap_mb = kSmallBucket});
        auto adam = std::make_shared<Adam>(AdamOptions{.lr = 0.01});
        ddp->set_hook(make_hook("allreduce"));
        if (in_backward) apply_optimizer_in_backward(ddp, adam);
        ddp->core().join([&] {
          for (int step = 0; step < 2 * group.rank(); ++step) {
            ddp->zero_grad();
            backward(ddp, step, !unused);
            if (!in_backward) step_after(ddp, *adam, {});
          }
        });
        if (in_backward) {  // also on the rank that never had any
          EXPECT_EQ(adam->state({{"w", net->last->weight}}).values.at("w.step"), "4");
        }
        results.push_back(net->parameters());
      }
      expect_same_bits(results[0], results[1], unused ? "unused" : "all used");
    }
  });
}

TEST(OptimizerInBackward, TheHookCanBeExchangedWhileTraining) {
  run_ranks(2, [](ProcessGroup group) {
    const auto trained = [&](How how) {
      Fork net = make_fork();
      Ddp ddp(net, group, {.bucket_cap_mb = kSmallBucket});
      auto adam = std::make_shared<Adam>();
      if (how == How::in_backward) apply_optimizer_in_backward(ddp, adam);
      int step = 0;
      for (const char* hook : {"fp16", "int8", "powersgd:start=0", "allreduce"}) {
        ddp->set_hook(make_hook(hook));
        for (int end = step + 2; step < end; ++step) {
          ddp->zero_grad();
          backward(ddp, step, true);
          if (how == How::after) step_after(ddp, *adam, {});
        }
      }
      return net->parameters();
    };
    expect_same_bits(trained(How::after), trained(How::in_backward), "exchanged");
  });
}

TEST(OptimizerInBackward, AStepThatThrowsComesOutOfBackwardAndTrainingGoesOnAfterReset) {
  run_ranks(2, [](ProcessGroup group) {
    struct Stubborn {
      void step_param(const at::Tensor& parameter, const at::Tensor& gradient) {
        if (refuses) throw std::runtime_error("no step today");
        inner.step_param(parameter, gradient);
      }
      bool refuses = false;
      SGD inner;
    };
    Fork net = make_fork();
    Ddp ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    auto stubborn = std::make_shared<Stubborn>();
    apply_optimizer_in_backward(ddp, stubborn);
    backward(ddp, 0, true);
    stubborn->refuses = true;
    expect_contains(thrown_text<std::exception>([&] { backward(ddp, 1, true); }),
                    "no step today");
    stubborn->refuses = false;
    ddp->reset();
    const torch::Tensor before = net->first->weight.detach().clone();
    backward(ddp, 2, true);
    EXPECT_FALSE(torch::equal(before, net->first->weight));
    EXPECT_FALSE(net->first->weight.grad().defined());
    expect_equal_replicas(*net->first, group);
  });
}

// ---- which parameters, and what becomes of gradients ------------------------------------

TEST(OptimizerInBackward, OthersKeepTheirGradientsAndIgnoredOnesAreUntouched) {
  run_ranks(2, [](ProcessGroup group) {
    for (bool views : {false, true}) {
      Fork plain_net = make_fork(), net = make_fork();
      DdpOptions options{.parameters_to_ignore = {"mixed"},
                         .bucket_cap_mb = kSmallBucket,
                         .gradient_as_bucket_view = views};
      Ddp plain(plain_net, group, options), ddp(net, group, options);
      auto sgd = std::make_shared<SGD>(SGDOptions{.lr = 0.1});
      auto adam = std::make_shared<Adam>();
      apply_optimizer_in_backward(ddp, sgd, net->first->parameters());
      apply_optimizer_in_backward(ddp, adam, {net->second->weight, net->mixed});
      for (int step = 0; step < 3; ++step) {
        for (auto* each : {&plain, &ddp}) {
          (*each)->zero_grad();
          backward(*each, step, true);
        }
        for (const auto& p : plain_net->first->parameters()) {
          SGD({.lr = 0.1}).step_param(p, p.grad());
        }
        for (const auto& p : net->first->parameters()) EXPECT_FALSE(p.grad().defined());
        EXPECT_FALSE(net->second->weight.grad().defined());
        auto kept = net->second->bias.grad();
        ASSERT_TRUE(kept.defined());
        if (step == 0) {
          EXPECT_TRUE(torch::equal(kept, plain_net->second->bias.grad()));
          EXPECT_TRUE(
              torch::equal(net->last->weight.grad(), plain_net->last->weight.grad()));
          EXPECT_TRUE(torch::equal(net->first->weight, plain_net->first->weight));
          EXPECT_TRUE(torch::equal(net->mixed.grad(), plain_net->mixed.grad()));
        }
        EXPECT_TRUE(net->mixed.grad().defined());
        torch::Tensor root = kept.clone();
        group.broadcast(root);
        EXPECT_TRUE(torch::equal(root, kept)) << "not reduced";
      }
      EXPECT_TRUE(torch::equal(net->mixed, plain_net->mixed));
      EXPECT_TRUE(torch::equal(net->last->weight, plain_net->last->weight));
    }
  });
}

TEST(OptimizerInBackward, WithoutBucketViewsGradientsGoBeforeBackwardIsOver) {
  run_ranks(2, [](ProcessGroup group) {
    for (bool in_backward : {false, true}) {
      Fork net = make_fork();
      Ddp ddp(net, group, {.bucket_cap_mb = kSmallBucket});
      auto sgd = std::make_shared<SGD>();
      int64_t most = 0;
      auto counting = make_hook("counting", [&](Bucket bucket, Comm&) -> Task<at::Tensor> {
        int64_t here = 0;
        for (const auto& p : bucket.parameters()) here += p.grad().defined();
        most = std::max(most, here);
        co_return bucket.buffer();
      });
      if (in_backward) apply_optimizer_in_backward(ddp, sgd);
      ddp->set_hook(counting);
      for (int step = 0; step < 2; ++step) backward(ddp, step, true);
      EXPECT_EQ(most > 0, !in_backward);
      EXPECT_EQ(ddp->hook(), counting);
    }
  });
}

TEST(OptimizerInBackward, ASubsetStepsAndTheRestKeepsItsValue) {
  run_ranks(2, [](ProcessGroup group) {
    Fork net = make_fork(), before = make_fork();
    Ddp ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    auto sgd = std::make_shared<SGD>(SGDOptions{.lr = 0.1});
    ddp->set_hook(hook_then_optimizer(make_hook("bf16"), sgd, net->last->parameters()));
    backward(ddp, 0, true);
    EXPECT_FALSE(torch::equal(net->last->weight, before->last->weight));
    EXPECT_TRUE(torch::equal(net->first->weight, before->first->weight));
    for (const auto& p : net->parameters()) EXPECT_TRUE(p.grad().defined());
  });
}

TEST(OptimizerInBackward, AParameterTakesOneOptimizerAndTheModelMustTrainIt) {
  run_ranks(1, [](ProcessGroup group) {
    Fork net = make_fork();
    Ddp ddp(net, group, {.parameters_to_ignore = {"mixed"}});
    auto sgd = std::make_shared<SGD>();
    apply_optimizer_in_backward(ddp, sgd, net->last->parameters());
    expect_contains(
        thrown_text<ConfigError>([&] { apply_optimizer_in_backward(ddp, sgd); }),
        "'last.weight' has an optimizer already");
    expect_contains(thrown_text<ConfigError>(
                        [&] { apply_optimizer_in_backward(ddp, sgd, {net->mixed}); }),
                    "none of the 1 parameters");
    expect_contains(thrown_text<ConfigError>([&] {
                      hook_then_optimizer(make_hook("fp16"), std::shared_ptr<SGD>());
                    }),
                    "null");
  });
}

TEST(OptimizerInBackward, RanksWithDifferentOptimizersAreTold) {
  run_ranks(2, [](ProcessGroup group) {
    Ddp ddp(make_fork(), group);
    auto sgd = std::make_shared<SGD>(SGDOptions{.lr = 0.1 * (1 + group.rank())});
    apply_optimizer_in_backward(ddp, sgd);
    expect_contains(thrown_text<MismatchError>([&] { backward(ddp, 0, true); }), "lr=0.2");
  });
}

// ---- sparse gradients -------------------------------------------------------------------

struct WordsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) { return last(table(words).sum(1)); }
  torch::nn::Embedding table = register_module(
      "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(4, 3));
};
TORCH_MODULE(Words);

TEST(OptimizerInBackward, StepsParametersWithSparseGradients) {
  run_ranks(2, [](ProcessGroup group) {
    const auto trained = [&](How how, bool wrapped) {
      Words net = seeded<Words>();
      DistributedDataParallel ddp(net, group);
      auto sgd = std::make_shared<SGD>(SGDOptions{.lr = 0.1});
      auto hook = make_hook("fp16");
      if (how == How::hook) hook = hook_then_optimizer(hook, sgd);
      if (how == How::in_backward) apply_optimizer_in_backward(ddp, sgd);
      ddp->set_hook(wrapped ? fp16_compress_wrapper(hook) : hook);
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        ddp(torch::tensor({{step, 3, 5}, {group.rank(), 3, 7}})).pow(2).sum().backward();
        if (how != How::after) continue;
        for (const auto& p : net->parameters()) sgd->step_param(p, p.grad());
      }
      EXPECT_EQ(net->table->weight.grad().defined(), how != How::in_backward);
      expect_equal_replicas(*net, group);
      return net;
    };
    for (bool wrapped : {false, true}) {
      Words after = trained(How::after, wrapped);
      EXPECT_FALSE(torch::equal(after->table->weight, seeded<Words>()->table->weight));
      expect_same_parameters(*after, *trained(How::hook, wrapped), 1e-6);
      expect_same_parameters(*after, *trained(How::in_backward, wrapped), 1e-6);
    }
  });
}

// Averages every bucket, the sparse ones too.
class TakesAll : public Hook {
 public:
  std::string name() const override { return "takes_all"; }
  bool takes_sparse() const override { return true; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    if (bucket.buffer().is_sparse()) ++sparse;
    at::Tensor mean = bucket.buffer().div(comm.size());
    co_await comm.all_reduce(mean);
    co_return mean;
  }
  std::atomic<int> sparse = 0;
};

TEST(OptimizerInBackward, HandsSparseBucketsToAHookThatTakesThem) {
  run_ranks(2, [](ProcessGroup group) {
    Words net = seeded<Words>();
    DistributedDataParallel ddp(net, group);
    auto inner = std::make_shared<TakesAll>();
    ddp->set_hook(hook_then_optimizer(inner, std::make_shared<SGD>(SGDOptions{.lr = 0.1})));
    ddp(torch::tensor({{1, 3, 5}, {group.rank(), 3, 7}})).pow(2).sum().backward();
    EXPECT_EQ(inner->sparse, 1);
    EXPECT_FALSE(torch::equal(net->table->weight, seeded<Words>()->table->weight));
    expect_equal_replicas(*net, group);
  });
}

}  // namespace
}  // namespace brigade::testing
