// DiLoCo compared with data-parallel training and with a reference in float64, and in
// checkpoints.
#include <gtest/gtest.h>

#include "brigade/checkpoint.h"
#include "brigade/hooks.h"
#include "brigade/local_sgd.h"
#include "brigade/optim.h"
#include "local_sgd/small_net.h"
#include "local_sgd/warnings.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using namespace testing;
using optim::DiLoCo;
using optim::DiLoCoOptions;

// A rank's net, its optimizer and DiLoCo.
struct Island {
  Island(ProcessGroup group, DiLoCoOptions options, at::ScalarType dtype = at::kFloat)
      : group(group),
        dtype(dtype),
        net(small_net(dtype)),
        optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)),
        diloco(*net, optimizer, group, std::move(options)) {}
  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      net->zero_grad();
      loss_on(net, group.rank(), step, dtype).backward();
      diloco.step();
    }
  }
  std::vector<at::Tensor> global() {
    std::vector<at::Tensor> list;
    for (auto& [key, tensor] : diloco.state().tensors)
      if (key.rfind("global.", 0) == 0) list.push_back(tensor.clone());
    return list;
  }
  ProcessGroup group;
  at::ScalarType dtype;
  torch::nn::Sequential net;
  torch::optim::SGD optimizer;
  DiLoCo diloco;
};

TEST(DiLoCo, WithAnExchangeAtEveryStepAndAPlainOuterStepEqualsDdp) {
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      DistributedDataParallel ddp(small_net(at::kDouble), group);
      auto net = small_net(at::kDouble);
      torch::optim::SGD alone(ddp->parameters(), 0.1), inner(net->parameters(), 0.1);
      DiLoCo diloco(*net, inner, group,
                    {.period = 1, .outer_lr = 1, .outer_momentum = 0, .fragments = 1});
      for (int64_t step = 0; step < 20; ++step) {
        ddp->zero_grad();
        loss_on(ddp, group.rank(), step, at::kDouble).backward();
        alone.step();
        net->zero_grad();
        loss_on(net, group.rank(), step, at::kDouble).backward();
        diloco.step();
        ASSERT_LT(distance(ddp->parameters(), net->parameters()), 1e-14);
        ASSERT_TRUE(same_on(group, net->parameters()));
      }
    });
  }
}

// The formulas, with all ranks in one process. `fragments`: the parameters of each.
std::vector<at::Tensor> reference(int rank, int ranks, int64_t steps,
                                  const DiLoCoOptions& o,
                                  const std::vector<int>& fragment) {
  std::vector<torch::nn::Sequential> nets;
  std::vector<std::unique_ptr<torch::optim::SGD>> inner;
  for (int r = 0; r < ranks; ++r) {
    nets.push_back(small_net(at::kDouble));
    inner.push_back(std::make_unique<torch::optim::SGD>(
        nets[r]->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)));
  }
  auto global = copy_of(nets[0]->parameters());
  std::vector<at::Tensor> velocity, started(global.size());
  for (const at::Tensor& g : global) velocity.push_back(at::zeros_like(g));
  std::vector<int64_t> due(global.size(), -1);
  for (int64_t step = 1; step <= steps; ++step) {
    for (int r = 0; r < ranks; ++r) {
      nets[r]->zero_grad();
      loss_on(nets[r], r, step - 1, at::kDouble).backward();
      inner[r]->step();
    }
    at::NoGradGuard no_grad;
    for (size_t p = 0; p < global.size(); ++p) {
      if (step % o.period == fragment[p] * o.period / o.fragments) {
        started[p] = at::zeros_like(global[p]);
        for (auto& net : nets) started[p] += (global[p] - net->parameters()[p]) / ranks;
        due[p] = step + o.delay;
      }
      if (due[p] != step) continue;
      velocity[p] = o.outer_momentum * velocity[p] + started[p];
      global[p] = global[p] - o.outer_lr * (started[p] + o.outer_momentum * velocity[p]);
      for (auto& net : nets) {
        net->parameters()[p].copy_((1 - o.mixing) * global[p] +
                                   o.mixing * net->parameters()[p]);
      }
    }
  }
  return copy_of(nets[rank]->parameters());
}

TEST(DiLoCo, TrainsAsTheFormulasInFloat64) {
  run_ranks(3, [](ProcessGroup group) {
    // The numbers of elements are 48 + 8, 40 + 5, 15 + 3.
    const std::map<int64_t, std::vector<int>> fragments{
        {1, {0, 0, 0, 0, 0, 0}}, {2, {0, 0, 1, 1, 1, 1}}, {3, {0, 1, 1, 2, 2, 2}}};
    for (const DiLoCoOptions& options : std::vector<DiLoCoOptions>{
             {.period = 4},
             {.period = 4, .outer_lr = 0.5, .outer_momentum = 0},
             {.period = 5, .delay = 2, .mixing = 0.5},
             {.period = 6, .fragments = 2},
             {.period = 6, .fragments = 3, .delay = 5, .mixing = 0.25},
             {.period = 7, .fragments = 3, .delay = 1}}) {
      SCOPED_TRACE(c10::str("period ", options.period, ", fragments ", options.fragments,
                            ", delay ", options.delay));
      Island island(group, options, at::kDouble);
      island.train(0, 23);
      const auto expected = reference(group.rank(), group.size(), 23, options,
                                      fragments.at(options.fragments));
      EXPECT_LT(distance(island.net->parameters(), expected), 1e-12);
      EXPECT_TRUE(same_on(group, island.global()));
      island.diloco.finish();
      EXPECT_TRUE(same_on(group, island.net->parameters()));
      EXPECT_EQ(island.diloco.steps(), 23);
    }
  });
}

TEST(DiLoCo, KeepsGlobalParametersTheSameBitsOnAllRanksWithEveryHook) {
  run_ranks(3, [](ProcessGroup group) {
    std::vector<at::Tensor> exact;
    for (const HookEntry& entry : hook_table()) {
      if (entry.tolerance < 0) continue;
      SCOPED_TRACE(entry.name);
      std::string spec(entry.name);
      if (spec.find("powersgd") != std::string::npos) spec += ":start=0,min_rate=1";
      // Five exchanges are too few for error feedback to recover what was left out.
      if (spec == "randomk") spec += ":ratio=1";
      Island island(group, {.period = 3,
                            .fragments = 2,
                            .delay = 1,
                            .mixing = 0.5,
                            .hook = make_hook(spec),
                            .bucket_cap_mb = kSmallBuckets});
      island.train(0, 14);
      const auto global = island.global();
      EXPECT_TRUE(same_on(group, global));
      EXPECT_FALSE(same_on(group, copy_of(island.net->parameters())));
      if (spec == "allreduce") exact = global;
      EXPECT_LT(distance(global, exact), 0.2);
      island.diloco.finish();
      EXPECT_TRUE(same_on(group, island.net->parameters()));
    }
  });
}

TEST(DiLoCo, SendsOnePerPeriodOfWhatDdpSends) {
  run_ranks(2, [](ProcessGroup group) {
    const auto bytes = [&](DiLoCoOptions options) {
      Island island(group, options);
      island.train(0, 200);
      return static_cast<double>(island.diloco.stats().total.bytes_sent);
    };
    DistributedDataParallel ddp(small_net(), group);
    ddp->set_hook(make_hook("allreduce"));
    for (int64_t step = 0; step < 200; ++step) loss_on(ddp, group.rank(), step).backward();
    const auto of_ddp = static_cast<double>(ddp->hook_stats().total.bytes_sent);
    EXPECT_EQ(of_ddp, 200 * 4 * 119);
    EXPECT_EQ(bytes({.period = 100}), of_ddp / 100);
    EXPECT_EQ(bytes({.period = 100, .fragments = 4}), of_ddp / 100);
    EXPECT_LT(bytes({.period = 100, .hook = make_hook("fp16")}), of_ddp / 100 * 0.8);
  });
}

TEST(DiLoCo, StepsAnyOptimizerAndParametersOfHalfPrecision) {
  run_ranks(2, [](ProcessGroup group) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      auto net = small_net(dtype);
      optim::Adam adam({.lr = 0.01});
      DiLoCo diloco(*net, adam, group, {.period = 5});
      double first = 0, last = 0;
      for (int64_t step = 0; step < 100; ++step) {
        net->zero_grad();
        at::Tensor loss = loss_on(net, group.rank(), step % 5, dtype);
        loss.backward();
        diloco.step();
        if (step < 5) first += loss.item<double>();
        if (step >= 95) last += loss.item<double>();
      }
      EXPECT_LT(last, 0.9 * first);
      EXPECT_TRUE(same_on(group, net->parameters()));
      for (auto& [key, tensor] : diloco.state().tensors)
        EXPECT_EQ(tensor.scalar_type(), at::kFloat) << key;
    }
  });
}

TEST(DiLoCo, GlobalParametersInFloat32StayWhenHalfPrecisionOnesDoNotMove) {
  run_ranks(2, [](ProcessGroup group) {
    auto net = small_net(at::kBFloat16);
    torch::optim::SGD optimizer(net->parameters(), 0.0);
    DiLoCo diloco(*net, optimizer, group, {.period = 1, .outer_momentum = 0});
    auto state = diloco.state();
    for (auto& [key, tensor] : state.tensors)
      tensor = tensor + 1e-4;  // between two numbers of the half type
    diloco.read_state(state)();
    {
      at::NoGradGuard no_grad;
      for (auto& item : net->named_parameters())
        item.value().copy_(state.tensors.at("global." + item.key()));
    }
    for (int64_t step = 0; step < 3; ++step) {
      loss_on(net, group.rank(), step, at::kBFloat16).backward();
      diloco.step();
    }
    for (auto& [key, tensor] : diloco.state().tensors)
      EXPECT_TRUE(at::equal(tensor, state.tensors.at(key))) << key;
  });
}

// There are two hosts of two: data-parallel within, DiLoCo between equal local ranks.
TEST(DiLoCo, WorksBetweenGroupsOfDataParallelRanks) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup host = group.new_subgroups(2);
    ProcessGroup across;
    for (int local = 0; local < 2; ++local) {
      ProcessGroup made = group.new_group({local, local + 2});
      if (made) across = made;
    }
    auto net = small_net();
    DistributedDataParallel ddp(net, host);
    torch::optim::AdamW optimizer(net->parameters(), 0.01);
    DiLoCo diloco(*net, optimizer, across, {.period = 4, .hook = make_hook("int8")});
    for (int64_t step = 0; step < 9; ++step) {
      ddp->zero_grad();
      loss_on(ddp, group.rank(), step).backward();
      diloco.step();
      EXPECT_TRUE(same_on(host, net->parameters()));
      EXPECT_EQ(same_on(group, net->parameters()), (step + 1) % 4 == 0) << step;
    }
  });
}

TEST(DiLoCo, ARankWhoseParametersAreNotFiniteSpoilsNothing) {
  run_ranks(2, [](ProcessGroup group) {
    for (const char* spec : {"allreduce", "int8"}) {
      Island island(group, {.period = 2, .hook = make_hook(spec)});
      island.train(0, 4);
      const auto before = island.global();
      if (group.rank() == 1) {
        at::NoGradGuard no_grad;
        island.net->parameters()[2].view(-1)[3] = NAN;
      }
      Warnings warnings;
      island.net->zero_grad();
      for (int step = 0; step < 2; ++step) {
        for (const at::Tensor& p : island.net->parameters())
          p.mutable_grad() = at::zeros_like(p);
        island.diloco.step();
      }
      EXPECT_EQ(island.diloco.rejected(), 1);
      EXPECT_NE(warnings.text().find("is not finite"), std::string::npos);
      EXPECT_TRUE(same_bits(island.global(), before));
      EXPECT_TRUE(same_on(group, island.net->parameters()));
      island.train(6, 8);
      EXPECT_EQ(island.diloco.rejected(), 1);
      for (const at::Tensor& p : island.net->parameters())
        EXPECT_TRUE(p.isfinite().all().item<bool>());
    }
  });
}

std::vector<CheckpointPart> parts_of(torch::nn::Module& net, torch::optim::SGD& optimizer,
                                     optim::DiLoCo& diloco) {
  std::vector<CheckpointPart> parts{model_part(net),
                                    per_rank(optimizer_part(optimizer, net))};
  for (const CheckpointPart& part : diloco_parts(diloco)) parts.push_back(part);
  return parts;
}
std::vector<CheckpointPart> parts_of(Island& island) {
  return parts_of(*island.net, island.optimizer, island.diloco);
}

DiLoCoOptions streaming() {
  return {.period = 4,
          .fragments = 2,
          .delay = 3,
          .mixing = 0.5,
          .hook = make_hook("int8"),
          .bucket_cap_mb = kSmallBuckets};
}

TEST(DiLoCo, ACheckpointInTheMiddleOfAnExchangeChangesNoBit) {
  const TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    for (int64_t at : {5, 6, 7, 8}) {
      SCOPED_TRACE("saved after step " + std::to_string(at));
      Island whole(group, streaming()), first(group, streaming());
      whole.train(0, 20);
      first.train(0, at);
      save_checkpoint(folder.path(), at, group, parts_of(first));
      Island second(group, streaming());
      EXPECT_EQ(load_checkpoint(folder.path(), group, parts_of(second)), at);
      EXPECT_EQ(second.diloco.steps(), at);
      second.train(at, 20);
      EXPECT_TRUE(same_bits(whole.net->parameters(), second.net->parameters()));
      EXPECT_TRUE(same_bits(whole.global(), second.global()));
    }
  });
}

TEST(DiLoCo, ThreeRanksGoOnWhereTwoHaveStopped) {
  const TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    Island island(group, streaming());
    island.train(0, 9);
    save_checkpoint(folder.path(), 9, group, parts_of(island));
  });
  run_ranks(3, [&](ProcessGroup group) {
    Island island(group, streaming());
    EXPECT_EQ(load_checkpoint(folder.path(), group, parts_of(island)), 9);
    EXPECT_TRUE(same_on(group, island.net->parameters())) << "all have the mean";
    island.train(9, 20);
    EXPECT_TRUE(same_on(group, island.global()));
  });
}

TEST(DiLoCo, RefusesAStateThatDoesNotFit) {
  run_ranks(1, [](ProcessGroup group) {
    Island island(group, streaming());
    island.train(0, 3);
    auto state = island.diloco.state();
    const auto with = [&](auto change) {
      auto changed = state;
      change(changed);
      return refusal([&] { island.diloco.read_state(changed); });
    };
    const std::string key = "global.0.weight";
    EXPECT_NE(with([&](auto& s) { s.tensors.erase(key); }).find("lacks '" + key),
              std::string::npos);
    EXPECT_NE(with([&](auto& s) { s.tensors[key] = at::zeros({2}); }).find("in shape [2]"),
              std::string::npos);
    EXPECT_NE(with([&](auto& s) { s.values["steps"] = "-3"; }).find("must be a count"),
              std::string::npos);
    EXPECT_NE(with([&](auto& s) { s.values["fragments"] = "3"; }).find("fragments"),
              std::string::npos);
    auto of_rank = island.diloco.rank_state();
    of_rank.values["diloco.hook"] = "fp16";
    EXPECT_NE(refusal([&] {
                island.diloco.read_rank_state({of_rank});
              }).find("was saved with the hook fp16, but here it is int8"),
              std::string::npos);
  });
}

TEST(DiLoCo, RefusesBadOptionsAndSaysWhatIsRight) {
  run_ranks(1, [](ProcessGroup group) {
    const auto with = [&](DiLoCoOptions options) {
      return refusal([&] { Island(group, options); });
    };
    EXPECT_NE(with({.period = 0}).find("period is 0, but must be 1 or more"),
              std::string::npos);
    EXPECT_NE(with({.outer_lr = 0}).find("outer_lr is 0, but must be more than 0"),
              std::string::npos);
    EXPECT_NE(with({.outer_momentum = 1}).find("outer_momentum is 1"), std::string::npos);
    EXPECT_NE(with({.outer_momentum = NAN}).find("outer_momentum is nan"),
              std::string::npos);
    EXPECT_NE(with({.fragments = 7}).find("fragments is 7, but must be 1 to 6"),
              std::string::npos);
    EXPECT_NE(with({.period = 2, .fragments = 3}).find("must be 1 to 2"),
              std::string::npos);
    EXPECT_NE(with({.period = 4, .delay = 4}).find("delay is 4"), std::string::npos);
    EXPECT_NE(with({.mixing = 1}).find("mixing is 1"), std::string::npos);
    EXPECT_NE(with({.bucket_cap_mb = 0}).find("bucket_cap_mb is 0"), std::string::npos);
    torch::optim::SGD none(std::vector<at::Tensor>{}, 0.1);
    EXPECT_NE(refusal([&] {
                DiLoCo(optim::NamedParameters{}, none, group);
              }).find("no parameters"),
              std::string::npos);
    EXPECT_NE(refusal([&] { Island({}, {}); }).find("group is empty"), std::string::npos);
  });
}

TEST(DiLoCo, RanksWithDifferentOptionsHooksOrModelsFindOut) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THROW(Island(group, {.period = 100 + group.rank()}), MismatchError);
    EXPECT_THROW(Island(group, {.hook = make_hook(group.rank() ? "fp16" : "bf16")}),
                 MismatchError);
    torch::nn::Linear net(3, 4 + group.rank());
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    EXPECT_THROW(DiLoCo(*net, optimizer, group), MismatchError);
  });
}

}  // namespace
}  // namespace brigade
