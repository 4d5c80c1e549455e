// Functional optimizers compared with torch::optim, Python's numbers, and themselves.
#include <torch/torch.h>

#include <fstream>

#include "brigade/optim.h"
#include "kernels/optimizer_step.h"
#include "optim/numbers.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

double run_spec(const std::string& spec, torch::ScalarType dtype,
                const torch::Tensor& expected, bool transposed) {
  auto parameter = start().to(dtype);
  if (transposed) parameter = parameter.t().contiguous().t();
  auto optimizer = make_optimizer(spec);
  for (int step = 0; step < 10; ++step) {
    auto g = gradient(step).to(dtype);
    optimizer->step_param(parameter, transposed ? g.t().contiguous().t() : g);
  }
  return (parameter.to(torch::kDouble) - expected.view_as(parameter))
      .abs()
      .max()
      .item<double>();
}

TEST(Optimizers, TenStepsGivePythonsNumbersWithEveryOptionOnAndOff) {
  run_ranks(1, [](ProcessGroup) {
    std::ifstream file(std::string(BRIGADE_SOURCE_DIR) +
                       "/tests/data/optimizer_reference.txt");
    std::string spec;
    size_t count = 0;
    int lines = 0;
    while (file >> spec >> count) {
      std::vector<double> values(count);
      for (double& value : values) file >> value;
      auto expected = torch::tensor(values, torch::kDouble);
      EXPECT_LE(run_spec(spec, torch::kDouble, expected, false), 1e-12) << spec;
      EXPECT_LE(run_spec(spec, torch::kFloat, expected, false), 2e-5) << spec;
      EXPECT_LE(run_spec(spec, torch::kFloat, expected, true), 2e-5) << spec;
      ++lines;
    }
    EXPECT_EQ(lines, 308);
  });
}

// A kernel and ATen's operations differ by rounding only; a wrong formula would show here
// even where the numbers above happen to be coarse.
TEST(Optimizers, TheKernelsFollowTheFloat64Run) {
  run_ranks(1, [](ProcessGroup) {
    for (std::string_view name : optimizer_names()) {
      torch::manual_seed(3);
      auto exact = torch::randn({257}, torch::kDouble);
      auto parameter = exact.to(torch::kFloat);
      exact.copy_(parameter);
      auto one = make_optimizer(name);
      auto other = make_optimizer(name);
      for (int step = 0; step < 5; ++step) {
        auto g = torch::randn({257});
        one->step_param(parameter, g);
        other->step_param(exact, g);  // cast to float64
      }
      EXPECT_LE((parameter.to(torch::kDouble) - exact).abs().max().item<double>(), 2e-6)
          << name;
    }
  });
}

template <class Ours, class OurOptions, class Theirs, class TheirOptions>
void compare(OurOptions ours, TheirOptions theirs) {
  auto mine = start();
  auto reference = start().requires_grad_();
  Ours optimizer(ours);
  Theirs other({reference}, theirs);
  for (int step = 0; step < 10; ++step) {
    if (step == 5) {
      ours.lr *= 0.1;
      optimizer.set_lr(ours.lr);
      other.param_groups()[0].options().set_lr(ours.lr);
    }
    optimizer.step_param(mine, gradient(step));
    reference.mutable_grad() = gradient(step);
    other.step();
  }
  EXPECT_LE((mine - reference).abs().max().template item<double>(), 1e-12)
      << optimizer.fingerprint();
}

TEST(Optimizers, EqualLibTorchsInFloat64AlsoWhenTheLearningRateChanges) {
  run_ranks(1, [](ProcessGroup) {
    namespace to = torch::optim;
    for (double decay : {0.0, 0.1}) {
      for (double momentum : {0.0, 0.9}) {
        compare<SGD, SGDOptions, to::SGD>(
            {.lr = 0.1, .momentum = momentum, .weight_decay = decay},
            to::SGDOptions(0.1).momentum(momentum).weight_decay(decay));
        for (bool centered : {false, true}) {
          compare<RMSprop, RMSpropOptions, to::RMSprop>(
              {.lr = 0.1,
               .weight_decay = decay,
               .momentum = momentum,
               .centered = centered},
              to::RMSpropOptions(0.1).weight_decay(decay).momentum(momentum).centered(
                  centered));
        }
      }
      compare<SGD, SGDOptions, to::SGD>(
          {.lr = 0.1, .momentum = 0.9, .weight_decay = decay, .nesterov = true},
          to::SGDOptions(0.1).momentum(0.9).weight_decay(decay).nesterov(true));
      for (bool amsgrad : {false, true}) {
        compare<Adam, AdamOptions, to::Adam>(
            {.lr = 0.1, .weight_decay = decay, .amsgrad = amsgrad},
            to::AdamOptions(0.1).weight_decay(decay).amsgrad(amsgrad));
        compare<AdamW, AdamWOptions, to::AdamW>(
            {.lr = 0.1, .weight_decay = decay, .amsgrad = amsgrad},
            to::AdamWOptions(0.1).weight_decay(decay).amsgrad(amsgrad));
      }
      compare<Adagrad, AdagradOptions, to::Adagrad>(
          {.lr = 0.1, .lr_decay = 0.1, .weight_decay = decay},
          to::AdagradOptions(0.1).lr_decay(0.1).weight_decay(decay));
    }
  });
}

TEST(Optimizers, EveryInstructionSetGivesTheSameBits) {
  run_ranks(1, [](ProcessGroup) {
    using namespace kernels;
    for (bool all : {false, true}) {
      auto run = [all](Isa isa) {
        torch::manual_seed(5);
        auto p = torch::randn({1003}), g = torch::randn({1003}), a = torch::rand({1003}),
             b = torch::rand({1003}), c = torch::rand({1003});
        auto f = [](torch::Tensor& t) { return t.data_ptr<float>(); };
        StepArrays two{f(p), f(g), f(a), f(b), nullptr, 1003};
        StepArrays three{f(p), f(g), f(a), f(b), all ? f(c) : nullptr, 1003};
        StepArrays one{f(p), f(g), all ? f(a) : nullptr, nullptr, nullptr, 1003};
        const float decay = all ? 0.1f : 0.0f;
        step(SgdStep{0.1f, 0.9f, 0.7f, decay, -1, all, false}, one, isa);
        step(AdamStep{0.1f, 0.9f, 0.1f, 0.99f, 0.01f, 0.3f, 1e-8f, decay, 1, 0.9f}, three,
             isa);
        one.first = f(a);
        step(AdagradStep{0.1f, 1e-8f, decay, 1}, one, isa);
        step(RmspropStep{0.1f, 0.9f, 0.1f, 1e-2f, decay, 0.9f, 1}, three, isa);
        step(AdadeltaStep{0.1f, 0.9f, 0.1f, 1e-6f, decay, 1}, two, isa);
        step(AdamaxStep{0.1f, 0.9f, 0.1f, 0.9f, 1e-8f, decay, 1}, two, isa);
        step(RpropStep{0.5f, 1.2f, 1e-6f, 50, 1}, two, isa);
        return torch::cat({p, a, b, c});
      };
      auto reference = run(Isa::portable).view(torch::kInt);
      for (Isa isa : {Isa::avx2, Isa::avx512}) {
        if (!isa_runs(isa)) continue;
        EXPECT_TRUE(torch::equal(run(isa).view(torch::kInt), reference)) << isa_name(isa);
      }
    }
  });
}

TEST(Optimizers, AParameterMayHaveOptionsOfItsOwn) {
  run_ranks(1, [](ProcessGroup) {
    auto a = start(), b = start(), c = start();
    SGD sgd({.lr = 0.5});
    sgd.set_options({b}, {.lr = 0.25, .momentum = 0.9});
    sgd.set_lr({c}, 0);
    sgd.set_lr(1.0);  // for parameters without options
    for (auto& parameter : {a, b, c}) sgd.step_param(parameter, gradient(0));
    EXPECT_TRUE(torch::equal(a, start() - gradient(0)));
    EXPECT_TRUE(torch::equal(b, start() - 0.25 * gradient(0)));
    EXPECT_TRUE(torch::equal(c, start()));
    EXPECT_EQ(sgd.options(b).momentum, 0.9);
  });
}

TEST(Optimizers, StateIsSavedAndLoadedToTheLastBit) {
  run_ranks(1, [](ProcessGroup) {
    for (std::string_view name : optimizer_names()) {
      for (auto dtype : {torch::kFloat, torch::kDouble}) {
        auto kept = start().to(dtype), loaded = start().to(dtype);
        auto one = make_optimizer(name);
        one->set_lr({kept}, 0.03);
        for (int step = 0; step < 3; ++step) one->step_param(kept, gradient(step));
        loaded.copy_(kept);
        auto two = make_optimizer(name);
        two->load_state(one->state({{"a", kept}}), {{"a", loaded}});
        for (int step = 3; step < 6; ++step) {
          one->step_param(kept, gradient(step));
          two->step_param(loaded, gradient(step));
        }
        EXPECT_TRUE(torch::equal(kept, loaded)) << name;
      }
    }
  });
}

TEST(Optimizers, AStateThatDoesNotFitChangesNothing) {
  run_ranks(1, [](ProcessGroup) {
    auto parameter = start(), other = torch::zeros({2}, torch::kDouble);
    Adam adam({.lr = 0.1}), small({.lr = 0.5});
    adam.step_param(parameter, gradient(0));
    small.step_param(other, torch::ones({2}));
    auto state = small.state({{"a", other}});
    const std::string text = thrown_text<ConfigError>([&] {
      adam.load_state(state, {{"a", parameter}});
    });
    expect_contains(text, "'a.exp_avg' is Double [2]");
    expect_contains(text, "[3, 5]");
    state.values.erase("options.eps");
    expect_contains(thrown_text<ConfigError>([&] {
                      adam.load_state(state, {{"a", other}});
                    }),
                    "no 'options.eps'");
    expect_contains(thrown_text<ConfigError>([&] {
                      adam.load_state(SGD().state({}), {{"a", parameter}});
                    }),
                    "adam: the state is of sgd");
    EXPECT_EQ(adam.options().lr, 0.1);
    EXPECT_EQ(adam.state({{"a", parameter}}).values.at("a.step"), "1");
  });
}

TEST(Optimizers, BadOptionsAndNamesAreRefusedWithTheRemedy) {
  const auto refusal = [](const char* spec) {
    return thrown_text<ConfigError>([&] { make_optimizer(spec); });
  };
  expect_contains(refusal("adm"), "no optimizer named 'adm'");
  expect_contains(refusal("adm"), "did you mean 'adam'?");
  expect_contains(refusal("lbfgs"), "known: sgd, adam, adamw, adagrad, rmsprop");
  expect_contains(refusal("adam:lr=fast"), "optimizer 'adam': lr is 'fast'");
  expect_contains(refusal("adam:amsgrd=1"), "did you mean 'amsgrad'?");
  expect_contains(refusal("sgd:lr=-1"), "sgd: lr is -1, but must be 0 or more");
  expect_contains(refusal("sgd:nesterov=1"), "more than 0 with nesterov");
  expect_contains(refusal("adam:beta2=1"), "below 1");
  expect_contains(refusal("rprop:eta_plus=0.9"), "above 1");
}

TEST(Optimizers, AWrongGradientIsRefused) {
  run_ranks(1, [](ProcessGroup) {
    auto parameter = start();
    Adam adam;
    expect_contains(thrown_text<ConfigError>([&] {
                      adam.step_param(parameter, torch::ones({5, 3}));
                    }),
                    "a gradient of shape [5, 3] for a parameter of shape [3, 5]");
    expect_contains(
        thrown_text<ConfigError>([&] { adam.step_param(parameter, torch::Tensor()); }),
        "got no gradient");
    auto sparse = torch::ones({3, 5}, torch::kDouble).to_sparse();
    expect_contains(thrown_text<ConfigError>([&] { adam.step_param(parameter, sparse); }),
                    "sparse");
  });
}

TEST(Optimizers, SparseGradientsStepTheirRowsAsDenseOnesDo) {
  run_ranks(1, [](ProcessGroup) {
    for (const char* spec : {"sgd:lr=0.1", "sgd:lr=0.1,momentum=0.9", "adagrad:lr=0.1"}) {
      auto dense = start(), sparse = start();
      auto one = make_optimizer(spec), two = make_optimizer(spec);
      for (int step = 0; step < 3; ++step) {
        auto g = gradient(step);
        g[1].zero_();
        one->step_param(dense, g);
        two->step_param(sparse, g.to_sparse());
      }
      EXPECT_LE((dense - sparse).abs().max().item<double>(), 1e-15) << spec;
    }
  });
}

TEST(Optimizers, AStepIsSeenByAutograd) {
  run_ranks(1, [](ProcessGroup) {
    auto parameter = torch::ones({4}, torch::requires_grad());
    auto loss = (parameter * parameter).sum();
    SGD().step_param(parameter, torch::ones({4}));
    expect_contains(thrown_text([&] { loss.backward(); }), "inplace");
  });
}

}  // namespace
}  // namespace brigade::testing
