// Training with a share of the optimizer's state on each rank equals plain training.
#include "brigade/zero.h"

#include "brigade/optim.h"
#include "zero/zero_models.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

struct Buckets {
  double cap_mb;
  size_t at_least;
};
const Buckets kBuckets[] = {{1000, 1}, {0.003, 2}, {kManyBuckets, 5}};

TEST(Zero, TrainsLikeTheOptimizerOnEveryRankToTheLastBit) {
  for (int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      for (const auto& [cap, buckets] : kBuckets) {
        for (const How how : kZeroSteps) {
          Setting setting{.ddp = {.bucket_cap_mb = cap}};
          expect_same_training(group, setting, how, buckets);
          if (how == How::step_views || group.size() != 4) continue;
          setting.optimizer = "sgd:lr=0.1,momentum=0.9";
          expect_same_training(group, setting, how, buckets);
        }
      }
    });
  }
}

TEST(Zero, TrainsLikeItWithEveryOptimizer) {
  run_ranks(3, [](ProcessGroup group) {
    for (std::string_view name : optimizer_names()) {
      const Setting setting{.optimizer = std::string(name) + ":lr=0.01", .steps = 6};
      for (const How how : {How::interleaved, How::reduce_scatter})
        expect_same_training(group, setting, how);
    }
  });
}

TEST(Zero, TakesOptimizersOfTorch) {
  run_ranks(3, [](ProcessGroup group) {
    for (const bool interleaved : {false, true}) {
      Tower plain = make_tower(), sharded = make_tower();
      Ddp plain_ddp(plain, group), sharded_ddp(sharded, group);
      const auto options = torch::optim::AdamWOptions(0.01).amsgrad(true);
      torch::optim::AdamW all(plain->parameters(), options);
      auto zero = std::make_shared<ZeroRedundancyOptimizer>(
          sharded_ddp, [&](const std::vector<torch::Tensor>& share) {
            return std::make_shared<torch::optim::AdamW>(share, options);
          });
      plain_ddp->set_hook(make_hook("allreduce"));
      sharded_ddp->set_hook(make_hook("allreduce"));
      if (interleaved)
        sharded_ddp->set_hook(
            hook_with_zero_step_interleaved(make_hook("allreduce"), sharded_ddp, zero));
      for (int step = 0; step < 6; ++step) {
        if (step == 3) {
          all.param_groups()[0].options().set_lr(0.002);
          zero->set_lr(0.002);
        }
        train_step(plain_ddp, {}, step);
        all.step();
        train_step(sharded_ddp, {}, step);
        if (!interleaved) zero->step();
      }
      expect_same_parameters(*sharded, *plain, 0);
      EXPECT_EQ(zero->lr(), 0.002);
    }
  });
}

TEST(Zero, GivesOutParametersBySizeTheLargestFirst) {
  run_ranks(3, [](ProcessGroup group) {
    NamedParameters parameters;
    for (const int64_t size : {3, 10, 4, 9, 5, 8})
      parameters.emplace_back("p" + std::to_string(size), torch::ones({size}));
    std::vector<ZeroGroup> groups;
    groups.push_back({parameters, "sgd:lr=1"});
    ZeroRedundancyOptimizer zero(groups, group);
    // 10 | 9 | 8, then 5 to the last, 4 to the second, 3 to the first
    const std::vector<int> expected{0, 0, 1, 1, 2, 2};
    for (size_t i = 0; i < parameters.size(); ++i)
      EXPECT_EQ(zero.owner(parameters[i].second), expected[i]) << parameters[i].first;
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(zero.share(rank), 13);
    EXPECT_EQ(zero.owner(torch::ones({3})), -1);
  });
}

TEST(Zero, KeepsItsShareOfTheStateInMemory) {
  for (int ranks : {2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      torch::nn::Sequential net;
      for (int64_t layer = 0; layer < 24; ++layer)
        net->push_back(torch::nn::Linear(64 + layer, 65 + layer));
      int64_t whole = 0;  // two moments of every parameter
      for (const auto& parameter : net->parameters())
        whole += 2 * static_cast<int64_t>(parameter.nbytes());
      const double most = (1.0 / group.size() + 0.05) * static_cast<double>(whole);
      DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.1});
      const auto train = [&] {
        for (int step = 0; step < 3; ++step) {
          ddp->zero_grad();
          ddp->forward(torch::ones({2, 64})).sum().backward();
        }
      };
      auto zero = std::make_shared<ZeroRedundancyOptimizer>(ddp, "adam");
      train();
      zero->step();
      EXPECT_LE(static_cast<double>(zero->state_bytes()), most);
      ddp->set_hook(hook_with_zero_step_interleaved(make_hook("allreduce"), ddp, zero,
                                                    /*shard_buckets=*/true));
      train();
      EXPECT_LE(static_cast<double>(zero->state_bytes()), most) << "interleaved";
      ddp->set_hook(nullptr);
      auto hook = apply_zero_in_backward(ddp, "adam");
      train();
      EXPECT_LE(static_cast<double>(hook->state_bytes()), most) << "reduce-scatter";
      EXPECT_GT(hook->state_bytes(), 0);
    });
  }
}

TEST(Zero, GroupsHaveOptionsOfTheirOwnAndMayComeLater) {
  run_ranks(3, [](ProcessGroup group) {
    Tower net = make_tower(), same = make_tower();
    Ddp ddp(net, group), same_ddp(same, group);
    const auto named = [](Tower& tower, const std::string& prefix) {
      NamedParameters found;
      for (const auto& item : tower->named_parameters())
        if (item.key().starts_with(prefix)) found.emplace_back(item.key(), item.value());
      return found;
    };
    std::vector<ZeroGroup> groups;
    groups.push_back({named(net, "first"), "sgd:lr=0.1"});
    groups.push_back({named(net, "second"), "adam:lr=0.01"});
    ZeroRedundancyOptimizer zero(groups, group);
    SGD sgd({.lr = 0.1});
    Adam adam({.lr = 0.01});
    AdamW adamw({.lr = 0.02});
    const auto step = [&](const std::string& prefix, Optimizer& optimizer) {
      for (const auto& [name, parameter] : named(same, prefix))
        optimizer.step_param(parameter, parameter.grad());
    };
    for (int i = 0; i < 6; ++i) {
      if (i == 2) {
        const int owner = zero.owner(net->second->weight);
        zero.add_group({named(net, "third"), "adamw:lr=0.02"});
        EXPECT_EQ(zero.owner(net->second->weight), owner);
      }
      if (i == 4) {
        zero.set_lr(1, 0.005);
        adam.set_lr(0.005);
      }
      train_step(ddp, {}, i);
      zero.step();
      train_step(same_ddp, {}, i);
      step("first", sgd);
      step("second", adam);
      if (i >= 2) step("third", adamw);
    }
    expect_same_parameters(*net, *same, 0);
    EXPECT_EQ(zero.lr(0), 0.1);
    EXPECT_EQ(zero.lr(1), 0.005);
    EXPECT_TRUE(torch::equal(net->last->weight, make_tower()->last->weight));
  });
}

TEST(Zero, ParametersAsBucketViewsShareTheirOwnersMemory) {
  run_ranks(2, [](ProcessGroup group) {
    Training training(group, {}, How::step_views);
    training.step();
    std::map<int, torch::Tensor> first;
    for (const auto& [name, parameter] : training.named()) {
      auto& buffer =
          first.try_emplace(training.zero()->owner(parameter), parameter).first->second;
      EXPECT_TRUE(parameter.is_alias_of(buffer)) << name;
    }
    EXPECT_EQ(first.size(), 2u);
    EXPECT_FALSE(training.net()->mixed.is_contiguous()) << "the layout stays";
  });
}

// ---- state ------------------------------------------------------------------------------

void expect_equal_tensors(const OptimizerState& a, const OptimizerState& b) {
  EXPECT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [key, tensor] : a.tensors) {
    const auto found = b.tensors.find(key);
    ASSERT_NE(found, b.tensors.end()) << key;
    EXPECT_TRUE(torch::equal(tensor, found->second)) << key;
  }
}

TEST(Zero, ConsolidatedStateIsThatOfTheOptimizerOnEveryRank) {
  for (const How how : {How::step, How::interleaved, How::reduce_scatter}) {
    run_ranks(3, [&](ProcessGroup group) {
      Training plain(group, {.hook = "in order"}, How::plain),
          zero(group, {.hook = "in order"}, how);
      plain.train(5);
      zero.train(5);
      const OptimizerState whole = zero.sharded().consolidate(1);
      if (group.rank() != 1) {
        EXPECT_TRUE(whole.tensors.empty() && whole.values.empty());
        return;
      }
      OptimizerState stripped;
      for (const auto& [key, tensor] : whole.tensors)
        stripped.tensors[key.substr(8)] = tensor;
      for (const auto& [key, value] : whole.values) stripped.values[key.substr(8)] = value;
      const OptimizerState expected = plain.local().state(plain.named());
      expect_equal_tensors(expected, stripped);
      for (const auto& [key, value] : expected.values)
        EXPECT_EQ(stripped.values[key], value) << key;
    });
  }
}

TEST(Zero, GoesOnFromConsolidatedState) {
  for (const How how : {How::step, How::after_last, How::reduce_scatter}) {
    run_ranks(2, [&](ProcessGroup group) {
      Training first(group, {}, how), second(group, {}, how);
      first.set_lr(0.02);
      first.train(4);
      // In reality rank 0's state reaches rank 1 through a file; here each asks for it.
      OptimizerState whole;
      for (int to = 0; to < 2; ++to) {
        OptimizerState mine = first.sharded().consolidate(to);
        if (to == group.rank()) whole = mine;
      }
      torch::NoGradGuard no_grad;
      const auto from = first.net()->named_parameters();
      for (auto& item : second.net()->named_parameters())
        item.value().copy_(from[item.key()]);
      second.sharded().load_consolidated(whole);
      EXPECT_EQ(second.sharded().lr(), 0.02);
      torch::AutoGradMode grad(true);
      // The second run still has its first buckets; sums of two ranks have only one order.
      for (int step = 4; step < 8; ++step) {
        train_step(first.ddp(), {}, step);
        train_step(second.ddp(), {}, step);
        if (how == How::step) {
          first.zero()->step();
          second.zero()->step();
        }
      }
      expect_same_parameters(*first.net(), *second.net(), 0);
    });
  }
}

TEST(Zero, StateMovesWithItsParameters) {
  run_ranks(3, [](ProcessGroup group) {
    Training plain(group, {}, How::plain), zero(group, {}, How::step);
    for (int step = 0; step < 6; ++step) {
      plain.step();
      zero.step();
      std::vector<int> owners;
      for (size_t i = 0; i < zero.zero()->parameters().size(); ++i)
        owners.push_back(static_cast<int>(i + static_cast<size_t>(step)) % 3);
      zero.zero()->assign(owners);
    }
    expect_same_parameters(*plain.net(), *zero.net(), 0);
  });
}

// ---- wrong use --------------------------------------------------------------------------

TEST(Zero, BadInputIsRefusedWithTheReason) {
  run_ranks(1, [](ProcessGroup group) {
    const auto refused = [&](NamedParameters parameters, ShardFactory factory = "sgd") {
      return thrown_text<ConfigError>([&] {
        std::vector<ZeroGroup> groups;
        groups.push_back({parameters, factory});
        ZeroRedundancyOptimizer zero(groups, group);
      });
    };
    const auto one = torch::ones({3}), two = torch::ones({3});
    expect_contains(refused({}), "no parameters");
    expect_contains(refused({{"a", one}, {"b", one}}), "'b' is there twice");
    expect_contains(refused({{"a", one}, {"a", two}}), "two parameters have the name 'a'");
    expect_contains(refused({{"a", torch::Tensor()}}), "'a' is not initialized");
    expect_contains(refused({{"a", torch::ones({2}, torch::kLong)}}), "of Long");
    expect_contains(thrown_text<ConfigError>([] { ShardFactory factory("adan"); }), "adam");
    expect_contains(refused({{"a", one}},
                            [](const std::vector<torch::Tensor>&) {
                              return std::shared_ptr<torch::optim::SGD>();
                            }),
                    "null");
    expect_contains(refused({{"a", one}},
                            [&](const std::vector<torch::Tensor>&) {
                              return std::make_shared<torch::optim::SGD>(
                                  std::vector<torch::Tensor>{one, two}, 0.1);
                            }),
                    "must have one, with the 1 that the function got");
    expect_contains(
        thrown_text<ConfigError>([&] { ZeroRedundancyOptimizer zero({}, group); }),
        "no parameters");
    std::vector<ZeroGroup> groups;
    groups.push_back({{{"a", one}}, "sgd"});
    expect_contains(
        thrown_text<ConfigError>([&] { ZeroRedundancyOptimizer zero(groups, {}); }),
        "empty process group");
    ZeroRedundancyOptimizer zero(groups, group);
    expect_contains(thrown_text<ConfigError>([&] { zero.consolidate(1); }), "rank 1");
    expect_contains(thrown_text<ConfigError>([&] {
                      zero.add_group({{{"b", one}}, "sgd"});
                    }),
                    "twice");
  });
}

TEST(Zero, StateThatDoesNotFitIsRefusedAndChangesNothing) {
  for (const How how : {How::step, How::reduce_scatter}) {
    run_ranks(2, [&](ProcessGroup group) {
      Training zero(group, {}, how), sgd(group, {.optimizer = "sgd:momentum=0.5"}, how);
      zero.train(2);
      sgd.train(2);
      const OptimizerState before = zero.sharded().consolidate(0);
      OptimizerState other = sgd.sharded().consolidate(0);
      const auto refused = [&](const OptimizerState& state) {
        return thrown_text<ConfigError>([&] { zero.sharded().load_consolidated(state); });
      };
      if (group.rank() == 0) {
        expect_contains(refused(other), "the state is of sgd");
        expect_contains(refused({}), "no such group");
        OptimizerState changed = before;
        changed.values["group.0/parameters"] += "x";
        expect_contains(refused(changed), "'last.biasx' there, where 'last.bias' is here");
        changed = before;
        changed.tensors["group.0/third.weight.exp_avg"] = torch::ones({3});
        expect_contains(refused(changed), "third.weight.exp_avg");
      }
      expect_equal_tensors(before, zero.sharded().consolidate(0));
    });
  }
}

TEST(Zero, RanksThatDifferFindOut) {
  run_ranks(2, [](ProcessGroup group) {
    Tower net = make_tower();
    Ddp ddp(net, group);
    const std::string mine = group.rank() == 0 ? "adam" : "adam:lr=0.5";
    expect_contains(
        thrown_text<MismatchError>([&] { ZeroRedundancyOptimizer zero(ddp, mine); }),
        "'adam:lr=0.5");
    expect_contains(thrown_text<MismatchError>([&] { apply_zero_in_backward(ddp, mine); }),
                    "'adam:lr=0.5");
    std::vector<ZeroGroup> groups;
    groups.push_back({{{"w", torch::ones({3 + group.rank()})}}, "sgd"});
    expect_contains(
        thrown_text<MismatchError>([&] { ZeroRedundancyOptimizer zero(groups, group); }),
        "'w Float [4]'");
  });
}

}  // namespace
}  // namespace brigade::testing
