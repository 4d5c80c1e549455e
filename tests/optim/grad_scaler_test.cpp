// GradScaler gives Python's results, the same on all ranks.
#include <fstream>
#include <sstream>

#include "brigade/checkpoint.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "ddp/mixed_precision_nets.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

// ---- Python's numbers, see make_scaler_reference.py -------------------------------------

constexpr int kSteps = 12;

struct Reference {
  std::set<int> overflows;
  GradScalerOptions options;
  std::string way;
  std::vector<double> numbers;  // those of each step, then the parameters
};

std::vector<Reference> read_reference() {
  std::ifstream file(BRIGADE_SOURCE_DIR "/tests/data/scaler_reference.txt");
  std::vector<Reference> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string overflows;
    Reference reference;
    auto& options = reference.options;
    words >> overflows >> options.init_scale >> options.growth_factor >>
        options.backoff_factor >> options.growth_interval >> reference.way;
    std::istringstream list(overflows == "-" ? "" : overflows);
    for (std::string step; std::getline(list, step, ',');)
      reference.overflows.insert(std::stoi(step));
    for (double number; words >> number;) reference.numbers.push_back(number);
    all.push_back(reference);
  }
  return all;
}

std::vector<double> run(const Reference& reference) {
  GradScaler scaler(reference.options);
  std::vector<torch::Tensor> parameters;
  for (int i : {0, 1})
    parameters.push_back(torch::linspace(-1.0 + i, 1.0, 4).requires_grad_());
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  const auto optimize = [&](std::vector<torch::Tensor> list) {
    optimizers.push_back(std::make_unique<torch::optim::SGD>(
        std::move(list), torch::optim::SGDOptions(0.1).momentum(0.9)));
  };
  if (reference.way == "two") {
    for (const auto& parameter : parameters) optimize({parameter});
  } else {
    optimize(parameters);
  }
  std::vector<double> numbers;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& parameter : parameters) parameter.mutable_grad() = torch::Tensor();
    const double factor = reference.overflows.contains(step) ? 1e38 : 0.5 + 0.25 * step;
    auto loss = (parameters[0] * parameters[0]).sum() * factor +
                (parameters[1] * parameters[1]).sum() * factor;
    scaler.scale(loss).backward();
    if (reference.way == "unscale") {
      scaler.unscale_(*optimizers[0]);
      torch::nn::utils::clip_grad_value_(parameters, 0.7);
    }
    bool stepped = false;
    for (auto& optimizer : optimizers) stepped |= scaler.step(*optimizer);
    scaler.update(reference.way == "set" && step == 4 ? std::optional(512.0)
                                                      : std::nullopt);
    const auto state = scaler.state();
    numbers.insert(numbers.end(), {static_cast<double>(stepped), state->scale,
                                   static_cast<double>(state->growth_tracker)});
  }
  for (const auto& parameter : parameters) {
    for (int i = 0; i < 4; ++i) numbers.push_back(parameter[i].item<double>());
  }
  return numbers;
}

TEST(GradScaler, EqualsPythons) {
  run_ranks(1, [](ProcessGroup) {
    const auto all = read_reference();
    EXPECT_EQ(all.size(), 96U);
    for (const Reference& reference : all) {
      const auto mine = run(reference);
      ASSERT_EQ(mine.size(), reference.numbers.size());
      for (size_t i = 0; i < mine.size(); ++i) {
        // Scales and counts are equal to the bit, parameters in the digits that are stored.
        const double bound = i < 3 * kSteps ? 0 : 1e-7 * std::abs(mine[i]);
        ASSERT_LE(std::abs(mine[i] - reference.numbers[i]), bound)
            << "number " << i << " of " << reference.way << ", interval "
            << reference.options.growth_interval;
      }
    }
  });
}

// ---- ranks ------------------------------------------------------------------------------

TEST(GradScalerRanks, AgreeOnAnOverflowThatOneOfThemHas) {
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      const int last = group.size() - 1;
      for (bool agreeing : {true, false}) {
        GradScaler scaler({}, agreeing ? group : ProcessGroup());
        auto parameter = torch::ones({3}).requires_grad_();
        torch::optim::SGD sgd({parameter}, 0.1);
        auto pass = [&](double factor) {
          parameter.mutable_grad() = torch::Tensor();
          scaler.scale((parameter * factor).sum()).backward();
          const bool stepped = scaler.step(sgd);
          scaler.update();
          return stepped;
        };
        const bool mine = group.rank() == last;
        EXPECT_EQ(pass(mine ? 1e37 : 1), !agreeing && !mine);
        EXPECT_EQ(scaler.get_scale(), agreeing || mine ? 32768 : 65536);
        EXPECT_TRUE(pass(2));
        EXPECT_NEAR(parameter[0].item<float>(), agreeing || mine ? 0.8 : 0.7, 1e-6);
      }
    });
  }
}

TEST(GradScalerRanks, ThatHaveNoGradientsOfTheirOwnFollowTheOthers) {
  run_ranks(2, [](ProcessGroup group) {
    GradScaler scaler({}, group);
    auto parameter = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({parameter}, 0.1);
    auto scaled = scaler.scale(parameter.sum());
    if (group.rank() == 0) scaled.backward();
    EXPECT_TRUE(scaler.step(sgd));
    scaler.update();
    parameter.mutable_grad() = torch::Tensor();
    expect_contains(thrown_text<Error>([&] { scaler.step(sgd); }), "has a gradient");
  });
}

TEST(GradScalerTraining, InHalfPrecisionSkipsWhatOverflowsAndLearns) {
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      Probe net = seeded<Probe>();
      DistributedDataParallel ddp(
          net, group,
          {.parameters_to_ignore = {"extra.weight", "extra.bias"},
           .mixed_precision = MixedPrecision{.param_dtype = at::kHalf},
           .bucket_cap_mb = kSmallBucket});
      const auto parameters = ddp->core().parameters();
      torch::optim::Adam adam(parameters, 0.02);
      GradScaler scaler({.init_scale = 1 << 24, .growth_interval = 5}, group);
      int skipped = 0;
      double first = 0, now = 0;
      for (int step = 0; step < 40; ++step) {
        ddp->zero_grad();
        auto value = loss(ddp(share(float_batch(step % 4, 12), group)),
                          share(float_target(step % 4, 12), group));
        scaler.scale(value).backward();
        expect_full_precision(*net);
        skipped += !scaler.step(adam);
        scaler.update();
        (step == 0 ? first : now) = value.item<double>();
      }
      EXPECT_GT(skipped, 0) << "a scale of 2^24 is too much for fp16";
      EXPECT_LT(skipped, 25);
      EXPECT_LT(now, 0.5 * first);
      for (const auto& parameter : parameters) {
        torch::Tensor root = parameter.detach().clone();
        group.broadcast(root);
        EXPECT_TRUE(torch::equal(root, parameter));
      }
    });
  }
}

// ---- other optimizers -------------------------------------------------------------------

TEST(GradScalerOptimizers, OfBrigadeStepAsThoseOfTorch) {
  run_ranks(1, [](ProcessGroup) {
    auto mine = torch::linspace(-1, 1, 6).requires_grad_();
    auto theirs = mine.detach().clone().requires_grad_();
    auto unused = torch::ones({2}).requires_grad_();
    optim::SGD sgd({.lr = 0.1, .momentum = 0.9});
    torch::optim::SGD torch_sgd({theirs}, torch::optim::SGDOptions(0.1).momentum(0.9));
    GradScaler scaler, torch_scaler;
    for (int step = 0; step < 6; ++step) {
      const double factor = step == 2 ? 1e38 : 1.0 + step;
      for (auto* parameter : {&mine, &theirs}) parameter->mutable_grad() = torch::Tensor();
      scaler.scale((mine * mine).sum() * factor).backward();
      torch_scaler.scale((theirs * theirs).sum() * factor).backward();
      if (step == 4) scaler.unscale_({mine, unused});
      EXPECT_EQ(scaler.step(sgd, {mine, unused}), torch_scaler.step(torch_sgd));
      scaler.update();
      torch_scaler.update();
      EXPECT_EQ(scaler.get_scale(), torch_scaler.get_scale());
      EXPECT_LE(distance(mine, theirs), 1e-6);
    }
  });
}

// ---- state and misuse -------------------------------------------------------------------

TEST(GradScalerState, IsSavedInACheckpointAndContinuesAsIfNeverStopped) {
  const TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    auto parameter = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({parameter}, 0.0);
    auto pass = [&](GradScaler& scaler, double factor) {
      parameter.mutable_grad() = torch::Tensor();
      scaler.scale((parameter * factor).sum()).backward();
      scaler.step(sgd);
      scaler.update();
    };
    GradScaler saved({.init_scale = 100, .growth_factor = 3, .growth_interval = 3}, group);
    for (double factor : {1.0, 1e38, 1.0, 1.0}) pass(saved, factor);
    EXPECT_EQ(saved.get_scale(), 50);
    const std::vector<CheckpointPart> parts{scaler_part(saved)};
    save_checkpoint(folder.path(), 4, group, parts);
    GradScaler fresh, used;
    pass(used, 1);
    GradScaler off({.enabled = false});
    for (GradScaler* scaler : {&fresh, &used}) {
      const std::vector<CheckpointPart> mine{scaler_part(*scaler)};
      EXPECT_EQ(load_checkpoint(folder.path(), group, mine), 4);
      EXPECT_EQ(scaler->state()->growth_tracker, 2);
      pass(*scaler, 1);
      EXPECT_EQ(scaler->get_scale(), 150) << "the third in a row grows it threefold";
    }
    const std::vector<CheckpointPart> none{scaler_part(off)};
    EXPECT_EQ(load_checkpoint(folder.path(), group, none), 4);
    EXPECT_FALSE(off.state());
    save_checkpoint(folder.path(), 5, group, none);
    expect_contains(
        thrown_text<CheckpointError>([&] { load_checkpoint(folder.path(), group, parts); }),
        "not enabled");
    EXPECT_EQ(saved.get_scale(), 50);
  });
}

TEST(GradScalerState, ThatIsNotEnabledOnlySteps) {
  run_ranks(1, [](ProcessGroup) {
    GradScaler scaler({.enabled = false});
    auto parameter = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({parameter}, 0.5);
    scaler.scale(parameter.sum()).backward();
    scaler.unscale_(sgd);
    EXPECT_TRUE(scaler.step(sgd));
    scaler.update();
    EXPECT_EQ(parameter[0].item<float>(), 0.5);
    EXPECT_EQ(scaler.get_scale(), 1);
  });
}

TEST(GradScalerMisuse, IsAnErrorThatSaysWhatToDo) {
  run_ranks(1, [](ProcessGroup) {
    const auto refused = [](GradScalerOptions options) {
      return thrown_text<ConfigError>([&] { GradScaler scaler(options); });
    };
    expect_contains(refused({.init_scale = 0}), "init_scale is 0");
    expect_contains(refused({.growth_factor = 1}), "growth_factor is 1");
    expect_contains(refused({.backoff_factor = 1}), "backoff_factor is 1");
    expect_contains(refused({.growth_interval = 0}), "growth_interval is 0");

    GradScaler scaler;
    auto parameter = torch::ones({3}).requires_grad_();
    torch::optim::SGD sgd({parameter}, 0.5);
    expect_contains(thrown_text<Error>([&] { scaler.step(sgd); }), "before scale(loss)");
    expect_contains(thrown_text<Error>([&] { scaler.update(); }), "before scale(loss)");
    auto scaled = scaler.scale(std::vector<torch::Tensor>{parameter.sum()});
    expect_contains(thrown_text<Error>([&] { scaler.update(); }), "without a step()");
    expect_contains(thrown_text<Error>([&] { scaler.step(sgd); }), "has a gradient");
    scaled[0].backward();
    scaler.unscale_(sgd);
    expect_contains(thrown_text<Error>([&] { scaler.unscale_(sgd); }), "twice");
    scaler.step(sgd);
    expect_contains(thrown_text<Error>([&] { scaler.step(sgd); }), "twice");
    expect_contains(thrown_text<Error>([&] { scaler.unscale_(sgd); }), "after step()");
    scaler.update();

    auto half = torch::ones({3}, at::kHalf).requires_grad_();
    torch::optim::SGD half_sgd({half}, 0.5);
    scaler.scale(half.sum().to(torch::kFloat)).backward();
    expect_contains(thrown_text<Error>([&] { scaler.step(half_sgd); }), "fp16");
  });
}

}  // namespace
}  // namespace brigade::testing
