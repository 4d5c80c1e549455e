// Stepping in the backward pass is stepping after it.
#include <torch/torch.h>

#include <fstream>

#include "brigade/hooks/registry.h"
#include "brigade/optim/adam.h"
#include "brigade/optim/in_backward.h"
#include "brigade/optim/sgd.h"
#include "optim/numbers.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

static_assert(FunctionalOptimizer<Adam>);
static_assert(FunctionalOptimizer<TorchOptimizer>);
static_assert(!FunctionalOptimizer<torch::optim::SGD>);

// Three layers of which `second` may be left out, and one parameter in another layout.
struct ForkImpl : torch::nn::Module {
  explicit ForkImpl(torch::ScalarType dtype = torch::kFloat) {
    torch::NoGradGuard no_grad;
    mixed.set_data(mixed.t().contiguous().t());  // dense, but not in row order
    to(dtype);
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_second = true) {
    auto y = torch::tanh(torch::matmul(first(x), mixed));
    if (use_second) y = y + second(y);
    return last(y);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 3));
  torch::Tensor mixed = register_parameter("mixed", torch::randn({16, 16}) / 4);
};
TORCH_MODULE(Fork);

Fork make_fork(int seed = 1) {
  torch::manual_seed(seed);
  return Fork();
}

struct Setting {
  std::string hook = "allreduce";
  std::string optimizer = "adam:lr=0.01,weight_decay=0.1";
  DdpOptions ddp = {.bucket_cap_mb = kSmallBucket};
  // What each step does.
  std::function<bool(int step)> use_second = [](int) { return true; };
  int micro_batches = 1;
  StepOptions step;
  int steps = 5;
};
enum class How { after, hook, in_backward };

using Ddp = DistributedDataParallel<ForkImpl>;

void backward(Ddp& ddp, int number, bool use_second) {
  auto x = share(batch(number, 12), ddp->group()).to(torch::kFloat);
  auto y = share(target(number, 12), ddp->group()).to(torch::kFloat);
  torch::mse_loss(ddp(x, use_second), y).backward();
}

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
  Fork net = make_fork();
  Ddp ddp(net, group, setting.ddp);
  auto optimizer = make_optimizer(setting.optimizer);
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
  for (const auto& parameter : net->parameters()) {
    auto root = parameter.detach().clone(torch::MemoryFormat::Contiguous);
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, parameter)) << "replicas differ";
  }
  return net->parameters();
}

void expect_same_bits(const std::vector<torch::Tensor>& a,
                      const std::vector<torch::Tensor>& b, const std::string& what) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ", parameter " << i;
  }
}

void expect_parity(int ranks, const Setting& setting, bool both_views = true) {
  run_ranks(ranks, [&](ProcessGroup group) {
    for (bool views : {false, true}) {
      if (views && !both_views) continue;
      Setting s = setting;
      s.ddp.gradient_as_bucket_view = views;
      auto after = train(group, s, How::after);
      const std::string what = s.hook + ", " + s.optimizer + (views ? ", views" : "");
      expect_same_bits(after, train(group, s, How::hook), what + ", hook");
      expect_same_bits(after, train(group, s, How::in_backward), what + ", in backward");
      EXPECT_FALSE(torch::equal(after[0], make_fork()->parameters()[0]));
    }
  });
}

TEST(OptimizerInBackward, EqualsHookThenOptimizerToTheLastBitForEveryHook) {
  for (int ranks : {1, 4}) {
    for (const HookEntry& entry : hook_table()) {
      if (entry.tolerance < 0) continue;  // noop: replicas differ
      std::string spec(entry.name);
      if (spec.find("powersgd") != std::string::npos) spec += ":start=1,min_rate=1";
      expect_parity(ranks, {.hook = spec}, /*both_views=*/ranks == 4);
    }
    expect_parity(ranks, {.hook = "fp16+powersgd:start=1,min_rate=1"});
  }
}

TEST(OptimizerInBackward, EqualsItForEveryOptimizer) {
  for (std::string_view name : optimizer_names()) {
    expect_parity(4, {.optimizer = std::string(name) + ":lr=0.01"}, false);
  }
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
  for (int ranks : {1, 4}) {
    for (int micro_batches : {1, 2}) {
      for (bool use : {true, false}) {
        Setting setting{.use_second = [use](int) { return use; },
                        .micro_batches = micro_batches};
        setting.ddp.static_graph = true;
        expect_parity(ranks, setting);
      }
    }
  }
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

TEST(OptimizerInBackward, RefusesClippingByNormWithTheReason) {
  run_ranks(1, [](ProcessGroup group) {
    auto sgd = std::make_shared<SGD>();
    const auto refused = [&](const StepOptions& options) {
      return thrown_text<ConfigError>(
          [&] { hook_then_optimizer(make_hook("fp16"), sgd, {}, options); });
    };
    const std::string text = refused({.clip_grad_norm = 1});
    expect_contains(text, "clip_grad_norm can't go with an optimizer in the backward pass");
    expect_contains(text, "known only when the last one is reduced");
    expect_contains(text, "Use clip_grad_value");
    expect_contains(refused({.clip_grad_value = -1}), "must be more than 0");
    Ddp ddp(make_fork(), group);
    expect_contains(thrown_text<ConfigError>([&] {
                      apply_optimizer_in_backward(ddp, sgd, {}, {.clip_grad_norm = 1});
                    }),
                    "clip_grad_norm");
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

// ---- torch::optim -----------------------------------------------------------------------

TEST(TorchOptimizers, StepInTheBackwardPassWithTheirGroupsOptions) {
  run_ranks(2, [](ProcessGroup group) {
    const auto adam_of = [](Fork& net) {
      using torch::optim::AdamOptions, torch::optim::OptimizerParamGroup;
      std::vector<OptimizerParamGroup> groups;
      groups.emplace_back(net->first->parameters(),
                          std::make_unique<AdamOptions>(AdamOptions(0.1)));
      groups.emplace_back(std::vector{net->second->weight, net->second->bias,
                                      net->last->weight, net->last->bias, net->mixed});
      return std::make_shared<torch::optim::Adam>(groups, AdamOptions(0.01).amsgrad(true));
    };
    Fork after_net = make_fork(), net = make_fork();
    Ddp after(after_net, group, {.bucket_cap_mb = kSmallBucket});
    Ddp ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    auto reference = adam_of(after_net), adam = adam_of(net);
    after->set_hook(make_hook("allreduce"));
    apply_optimizer_in_backward(ddp, functional(adam));
    for (int step = 0; step < 4; ++step) {
      for (auto* each : {&after, &ddp}) {
        (*each)->zero_grad();
        backward(*each, step, true);
      }
      reference->step();
    }
    expect_same_bits(after_net->parameters(), net->parameters(), "adam");
    EXPECT_EQ(adam->param_groups()[0].params().size(), 2U);
    EXPECT_EQ(adam->param_groups()[1].params().size(), 5U);
  });
}

TEST(TorchOptimizers, OnesThatCanNotAreRefused) {
  run_ranks(1, [](ProcessGroup) {
    auto parameter = start().requires_grad_(), stranger = start();
    expect_contains(thrown_text<ConfigError>([&] {
                      functional(std::make_shared<torch::optim::LBFGS>(
                          std::vector{parameter}, torch::optim::LBFGSOptions(1)));
                    }),
                    "LBFGS can't step in the backward pass");
    auto sgd = functional(std::make_shared<torch::optim::SGD>(
        std::vector{parameter}, torch::optim::SGDOptions(0.1)));
    expect_contains(
        thrown_text<ConfigError>([&] { sgd->step_param(stranger, gradient(0)); }),
        "in no group");
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
    Words after_net = seeded<Words>(), net = seeded<Words>();
    DistributedDataParallel after(after_net, group), ddp(net, group);
    after->set_hook(make_hook("fp16"));
    ddp->set_hook(make_hook("fp16"));
    SGD reference({.lr = 0.1});
    apply_optimizer_in_backward(ddp, std::make_shared<SGD>(SGDOptions{.lr = 0.1}));
    for (int step = 0; step < 3; ++step) {
      auto words = torch::tensor({{step, 3, 5}, {group.rank(), 3, 7}});
      after->zero_grad();
      after(words).pow(2).sum().backward();
      ddp(words).pow(2).sum().backward();
      for (const auto& p : after_net->parameters()) reference.step_param(p, p.grad());
    }
    expect_same_parameters(*after_net, *net, 1e-6);
    expect_equal_replicas(*net, group);
    EXPECT_FALSE(net->table->weight.grad().defined());
  });
}

// ---- memory: run with --gtest_also_run_disabled_tests -----------------------------------

int64_t peak_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

TEST(Measure, DISABLED_PeakMemoryOfSgdOn256MiBOfParameters) {
  for (How how : {How::after, How::in_backward}) {
    for (bool views : {false, true}) {
      run_ranks(2, [&](ProcessGroup group) {
        torch::nn::Sequential net;
        for (int i = 0; i < 64; ++i) net->push_back(torch::nn::Linear(1024, 1024));
        DistributedDataParallel ddp(net.ptr(), group, {.gradient_as_bucket_view = views});
        auto sgd = std::make_shared<SGD>(SGDOptions{.lr = 1e-3});
        if (how == How::in_backward) apply_optimizer_in_backward(ddp, sgd);
        for (int step = 0; step < 3; ++step) {
          ddp(torch::ones({4, 1024})).sum().backward();
          if (how == How::in_backward) continue;
          for (const auto& p : net->parameters()) sgd->step_param(p, p.grad());
          ddp->zero_grad();
        }
        if (group.rank() == 0) {
          printf("%s, bucket views %s: peak %ld MiB\n",
                 how == How::after ? "step after backward" : "step in backward",
                 views ? "on" : "off", static_cast<long>(peak_kib() / 1024));
        }
      });
    }
  }
}

}  // namespace
}  // namespace brigade::testing
