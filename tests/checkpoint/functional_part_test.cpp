// Brigade's own optimizers in a checkpoint: a run with an optimizer that steps in the
// backward pass, saved and resumed.
#include <gtest/gtest.h>

#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "small_run.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::testing {
namespace {

constexpr int kRows = 24;

class OverlappedRun {
 public:
  // Resumes from the checkpoint in `folder`, if there is one.
  OverlappedRun(const ProcessGroup& group, const std::string& folder,
                const std::string& optimizer, const std::string& hook = "int8",
                int64_t width = 24)
      : group_(group),
        folder_(folder),
        net_(seeded(width)),
        ddp_(net_, group, options(folder)),
        optimizer_(optim::make_optimizer(optimizer)) {
    ddp_->set_hook(make_hook(hook));
    optim::apply_optimizer_in_backward(ddp_, optimizer_);
    optimizer_->set_lr(net_->out->parameters(), 0.003);
    step_ = load_checkpoint(folder_, group_, parts()).value_or(0);
  }
  std::vector<CheckpointPart> parts() {
    return {model_part(*net_), optimizer_part(*optimizer_, *net_), hook_part(ddp_->core()),
            bucket_part(ddp_->core())};
  }
  void save() { save_checkpoint(folder_, step_, group_, parts()); }
  void train(int64_t steps) {
    for (int64_t end = step_ + steps; step_ < end; ++step_) {
      if (step_ == 3) optimizer_->set_lr(0.004);
      const at::Tensor all =
          torch::sin(torch::arange(kRows * 16).view({kRows, 16}) * (0.3 + 0.1 * step_));
      const at::Tensor mine = all.chunk(group_.size())[group_.rank()];
      net_->eval();  // no dropout: this does not test generators
      torch::mse_loss(ddp_->forward(mine), mine.narrow(1, 0, 4)).backward();
    }
  }
  // All that the run's future depends on; of the hook's state, what is equal on all ranks.
  std::vector<at::Tensor> everything() {
    std::vector<at::Tensor> all;
    for (const char* part : {"model", "optimizer"}) {
      for (const CheckpointPart& each : parts()) {
        if (each.name != part) continue;
        for (const auto& [name, tensor] : each.save().tensors) all.push_back(tensor);
      }
    }
    return all;
  }
  int64_t step() const { return step_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::OptimizerState state() {
    optim::NamedParameters named;
    for (const auto& item : net_->named_parameters())
      named.emplace_back(item.key(), item.value());
    return optimizer_->state(named);
  }

 private:
  static SmallNet seeded(int64_t width) {
    torch::manual_seed(1);
    return SmallNet(width);
  }
  static DdpOptions options(const std::string& folder) {
    DdpOptions options{.bucket_cap_mb = 0.001};
    if (const auto saved = find_checkpoint(folder)) options.first_buckets = saved->buckets;
    return options;
  }

  ProcessGroup group_;
  std::string folder_;
  SmallNet net_;
  DistributedDataParallel<SmallNetImpl> ddp_;
  std::shared_ptr<optim::Optimizer> optimizer_;
  int64_t step_ = 0;
};

void expect_equal(OverlappedRun& a, OverlappedRun& b, const std::string& what) {
  const auto left = a.everything(), right = b.everything();
  ASSERT_EQ(left.size(), right.size()) << what;
  for (size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(at::equal(left[i], right[i])) << what << ", tensor " << i;
  EXPECT_EQ(a.state().values, b.state().values) << what;
}

TEST(FunctionalOptimizerPart, AResumedRunEqualsOneThatWasNeverStoppedForEveryOptimizer) {
  for (std::string_view name : optim::optimizer_names()) {
    TemporaryFolder folder;
    run_ranks(2, [&](ProcessGroup group) {
      const std::string spec = std::string(name) + ":lr=0.01";
      OverlappedRun first(group, folder.path(), spec);
      first.train(5);  // the learning rate has changed by then
      first.save();
      OverlappedRun second(group, folder.path(), spec);
      EXPECT_EQ(second.step(), 5);
      expect_equal(first, second, spec + ", loaded");
      first.train(4);
      second.train(4);
      expect_equal(first, second, spec + ", trained on");
    });
  }
}

TEST(FunctionalOptimizerPart, LoadsToTheLastBitAtAnotherNumberOfRanks) {
  TemporaryFolder folder, none;
  const std::string spec = "adam:amsgrad=1", copy = none.path() + "/copy";
  run_ranks(2, [&](ProcessGroup group) {
    OverlappedRun run(group, folder.path(), spec, "allreduce");
    run.train(5);
    run.save();
    if (group.rank() == 0) save_safetensors(copy, {.tensors = run.state().tensors});
  });
  for (const int ranks : {1, 3, 4}) {
    run_ranks(ranks, [&](ProcessGroup group) {
      OverlappedRun run(group, folder.path(), spec, "allreduce");
      EXPECT_EQ(run.step(), 5);
      const auto saved = load_safetensors(copy).tensors;
      const auto loaded = run.state();
      EXPECT_EQ(saved.size(), loaded.tensors.size());
      for (const auto& [name, tensor] : loaded.tensors)
        EXPECT_TRUE(at::equal(saved.at(name), tensor)) << name;
      EXPECT_EQ(loaded.values.at("in.weight.step"), "5");
      EXPECT_EQ(loaded.values.at("options.lr"), "0.004");
      EXPECT_EQ(loaded.values.at("out.weight.options.lr"), "0.003");
      run.train(2);
      EXPECT_EQ(run.state().values.at("in.weight.step"), "7");
    });
  }
}

TEST(FunctionalOptimizerPart, WhatDoesNotFitIsNamedAndChangesNothing) {
  TemporaryFolder folder, none;
  run_ranks(2, [&](ProcessGroup group) {
    OverlappedRun saved(group, folder.path(), "adam");
    saved.train(2);
    saved.save();
    const auto expect_refused = [&](std::vector<CheckpointPart> parts, OverlappedRun& run,
                                    const std::string& reason) {
      const auto before = run.state();
      std::string text = "it was accepted";
      try {
        load_checkpoint(folder.path(), group, parts);
      } catch (const CheckpointError& error) {
        text = error.what();
      }
      EXPECT_NE(text.find(reason), std::string::npos) << text;
      EXPECT_EQ(run.state().values, before.values);
    };
    OverlappedRun sgd(group, none.path(), "sgd:momentum=0.9");
    sgd.train(1);
    expect_refused({sgd.parts()[1]}, sgd, "sgd: the state is of adam");
    OverlappedRun wide(group, none.path(), "adam", "int8", 25);
    wide.train(1);
    expect_refused({wide.parts()[1]}, wide,
                   "is Float [24, 16], but the parameter is Float");
    torch::nn::Linear other(3, 2);
    expect_refused({optimizer_part(wide.optimizer(), *other)}, wide,
                   "which the model does not have");
  });
}

}  // namespace
}  // namespace brigade::testing
