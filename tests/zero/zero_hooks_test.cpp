// ZeRO in the backward pass.
#include <thread>

#include "brigade/zero.h"
#include "zero/zero_groups.h"
#include "zero/zero_models.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

const std::vector<How> kInBackward{How::after_last, How::interleaved, How::reduce_scatter};

TEST(ZeroHooks, TheReduceScatterFormTrainsLikeTheOptimizerOnEveryRank) {
  for (int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      for (const double cap : {1000.0, 0.003, kManyBuckets}) {
        for (const bool views : {false, true}) {
          Setting setting{.optimizer = "adamw:lr=0.01"};
          setting.ddp = {.bucket_cap_mb = cap, .gradient_as_bucket_view = views};
          expect_same_training(group, setting, How::reduce_scatter);
        }
      }
    });
  }
}

// The Reducer's ring adds in another order from three ranks on.
TEST(ZeroHooks, TheReduceScatterFormStaysCloseToAnAllReduce) {
  for (int ranks : {2, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      Training plain(group, {.optimizer = "sgd:lr=0.1"}, How::plain);
      Training zero(group, {.optimizer = "sgd:lr=0.1"}, How::reduce_scatter);
      plain.train(20);
      zero.train(20);
      expect_same_parameters(*plain.net(), *zero.net(), group.size() == 2 ? 0 : 1e-6);
    });
  }
}

TEST(ZeroHooks, TheReduceScatterFormMovesWhatAnAllReduceMoves) {
  for (int ranks : {2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      Training plain(group, {}, How::plain), zero(group, {}, How::reduce_scatter);
      plain.train(3);
      zero.train(3);
      const auto sent = [](Training& training) {
        return static_cast<double>(training.ddp()->hook_stats().last_step.bytes_sent);
      };
      EXPECT_LE(sent(zero), 1.05 * sent(plain));
      EXPECT_GE(sent(zero), 0.95 * sent(plain));
      EXPECT_GE(zero.ddp()->logging_data().bucket_bytes.size(), 5u);
    });
  }
}

TEST(ZeroHooks, StepBehindEveryHookWithBucketsWholeAndSharded) {
  run_ranks(3, [](ProcessGroup group) {
    for (const HookEntry& entry : hook_table()) {
      if (entry.tolerance < 0) continue;  // noop: replicas differ
      std::string spec(entry.name);
      if (spec.find("powersgd") != std::string::npos) spec += ":start=1,min_rate=1";
      for (const How how : {How::after_last, How::interleaved}) {
        for (const bool sharded : {false, true})
          expect_same_training(group, {.hook = spec, .shard_buckets = sharded, .steps = 4},
                               how);
      }
    }
  });
}

// Some parameters are not ZeRO's, and with a rate of 0 all keep their values.
TEST(ZeroHooks, GradientsAreThoseOfTheInnerHookToTheLastBit) {
  for (int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      for (const bool views : {false, true}) {
        Setting setting;
        setting.ddp.gradient_as_bucket_view = views;
        Tower expected_net = make_tower();
        Ddp expected(expected_net, group, setting.ddp);
        expected->set_hook(make_hook("allreduce"));
        for (int step = 0; step < 3; ++step) train_step(expected, setting, step);
        for (const bool interleaved : {false, true}) {
          Tower net = make_tower();
          Ddp ddp(net, group, setting.ddp);
          optim::NamedParameters some;
          for (const auto& item : net->named_parameters())
            if (!item.key().starts_with("third"))
              some.emplace_back(item.key(), item.value());
          auto zero = std::make_shared<ZeroRedundancyOptimizer>(
              std::vector<optim::ZeroGroup>{{some, "sgd:lr=0"}}, group);
          const auto inner = make_hook("allreduce");
          ddp->set_hook(interleaved
                            ? optim::hook_with_zero_step_interleaved(inner, ddp, zero)
                            : optim::hook_with_zero_step(inner, ddp, zero));
          for (int step = 0; step < 3; ++step) train_step(ddp, setting, step);
          const auto gradients = expected_net->named_parameters();
          for (const auto& item : net->named_parameters())
            EXPECT_TRUE(torch::equal(item.value().grad(), gradients[item.key()].grad()))
                << item.key() << ", interleaved " << interleaved << ", views " << views;
        }
      }
    });
  }
}

TEST(ZeroHooks, WholeBucketsBelongToOneRankOnceTheyAreMadeAnew) {
  run_ranks(3, [](ProcessGroup group) {
    Training zero(group, {}, How::interleaved);
    zero.train(3);
    std::map<std::string, torch::Tensor> by_name;
    for (const auto& [name, parameter] : zero.named()) by_name[name] = parameter;
    std::set<int> owners;
    for (const auto& bucket : zero.ddp()->logging_data().bucket_parameters) {
      const int owner = zero.zero()->owner(by_name.at(bucket.front()));
      for (const std::string& name : bucket)
        EXPECT_EQ(zero.zero()->owner(by_name.at(name)), owner) << name;
      owners.insert(owner);
    }
    EXPECT_EQ(owners.size(), 3u);
  });
}

// Without a model, as from Python, the buckets decide the owners. The state then moves,
// which waits for the other ranks: no station's thread may do that.
TEST(ZeroHooks, OwnersChangeOnTheThreadOfBackward) {
  run_ranks(3, [](ProcessGroup group) {
    for (const bool interleaved : {false, true}) {
      const Setting setting;
      Tower net = make_tower();
      Ddp ddp(net, group, setting.ddp);
      std::vector<std::thread::id> made_on;
      const auto make = [&](const std::vector<at::Tensor>&) {
        made_on.push_back(std::this_thread::get_id());
        return optim::make_optimizer(setting.optimizer);
      };
      auto zero = std::make_shared<ZeroRedundancyOptimizer>(ddp, make);
      ddp->set_hook(optim::make_zero_step(make_hook("allreduce"), zero, interleaved,
                                          /*shard_buckets=*/false));
      for (int step = 0; step < 5; ++step) train_step(ddp, setting, step);
      EXPECT_EQ(made_on.size(), 2u) << "at first, and when the buckets were known";
      for (const std::thread::id each : made_on)
        EXPECT_EQ(each, std::this_thread::get_id());
    }
  });
}

TEST(ZeroHooks, WorkWithAccumulatedUnusedAndStaticGradients) {
  for (int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](ProcessGroup group) {
      for (const How how : kInBackward) {
        for (const bool views : {false, true}) {
          if (group.size() < 3 && views) continue;
          Setting setting{.micro_batches = 3, .steps = 5};
          setting.ddp.gradient_as_bucket_view = views;
          expect_same_training(group, setting, how);
          for (const int micro_batches : {1, 2}) {
            Setting unused{.use_second = [](int step) { return step % 2 == 0; },
                           .micro_batches = micro_batches,
                           .steps = 5};
            unused.ddp.gradient_as_bucket_view = views;
            unused.ddp.find_unused_parameters = true;
            expect_same_training(group, unused, how);
            // The first pass inside no_sync is reduced by a plain all-reduce, which adds in
            // another order from three ranks on.
            if (how == How::reduce_scatter && micro_batches > 1 && group.size() > 2)
              continue;
            Setting fixed{.use_second = [](int) { return false; },
                          .micro_batches = micro_batches,
                          .steps = 5};
            fixed.ddp.gradient_as_bucket_view = views;
            fixed.ddp.static_graph = true;
            expect_same_training(group, fixed, how);
          }
        }
      }
    });
  }
}

TEST(ZeroHooks, StepOnRanksWithoutInputToo) {
  run_ranks(3, [](ProcessGroup group) {
    for (const How how : kInBackward) {
      Setting setting;
      if (how == How::reduce_scatter) setting.hook = "in order";
      Training plain(group, setting, How::plain), zero(group, setting, how);
      for (Training* each : {&plain, &zero})
        each->ddp()->join([&] { each->train(2 + 2 * group.rank()); });
      for (size_t i = 0; i < plain.named().size(); ++i) {
        EXPECT_TRUE(torch::equal(plain.named()[i].second, zero.named()[i].second))
            << describe(how, setting) << " " << plain.named()[i].first;
      }
    }
  });
}

TEST(ZeroHooks, TheReduceScatterFormLeavesNoGradients) {
  run_ranks(2, [](ProcessGroup group) {
    for (const bool views : {false, true}) {
      Setting setting;
      setting.ddp.gradient_as_bucket_view = views;
      Training zero(group, setting, How::reduce_scatter);
      zero.train(2);
      for (const auto& parameter : zero.net()->parameters())
        EXPECT_FALSE(parameter.grad().defined());
      zero.ddp()->core().set_in_backward(nullptr);
      train_step(zero.ddp(), {}, 0);
      EXPECT_TRUE(zero.net()->mixed.grad().defined()) << "taken off";
    }
  });
}

TEST(ZeroHooks, AFailureOfOneRankComesOutOfBackwardOnAll) {
  run_ranks(2,
            [](ProcessGroup group) {
              for (const bool last : {false, true}) {
                Tower net = make_tower();
                Ddp ddp(net, group, {.bucket_cap_mb = kManyBuckets});
                auto zero = std::make_shared<ZeroRedundancyOptimizer>(ddp, "adam");
                auto broken =
                    make_hook("broken", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
                      at::Tensor mean = bucket.buffer().div(comm.size());
                      co_await comm.all_reduce(mean);
                      if (comm.rank() == 1 && comm.step() == 1 && bucket.index() == 1)
                        throw Error("no more paper");
                      co_return mean;
                    });
                ddp->set_hook(last ? hook_with_zero_step(broken, ddp, zero)
                                   : hook_with_zero_step_interleaved(broken, ddp, zero));
                train_step(ddp, {}, 0);
                expect_contains(thrown_text([&] { train_step(ddp, {}, 1); }),
                                "no more paper");
              }
            },
            {.timeout = std::chrono::milliseconds(5000)});
}

TEST(ZeroHooks, WrongUseIsRefusedWithTheReason) {
  run_ranks(2, [](ProcessGroup group) {
    Tower net = make_tower(), other = make_tower();
    Ddp ddp(net, group), other_ddp(other, group);
    auto zero = std::make_shared<ZeroRedundancyOptimizer>(ddp, "adam");
    auto strange = std::make_shared<ZeroRedundancyOptimizer>(other_ddp, "adam");
    const auto allreduce = make_hook("allreduce");
    const auto refused = [&](auto&& act) { return thrown_text<ConfigError>(act); };
    expect_contains(refused([&] { hook_with_zero_step(nullptr, ddp, zero); }), "is null");
    expect_contains(refused([&] { hook_with_zero_step(allreduce, ddp, nullptr); }),
                    "is null");
    expect_contains(
        refused([&] { hook_with_zero_step_interleaved(allreduce, ddp, strange); }),
        "never step it");
    Ddp skipping(make_tower(), group,
                 {.find_unused_parameters = true, .skip_all_reduce_unused_params = true});
    auto skipping_zero = std::make_shared<ZeroRedundancyOptimizer>(skipping, "adam");
    expect_contains(
        refused([&] { hook_with_zero_step(allreduce, skipping, skipping_zero); }),
        "hook_with_zero_step_interleaved");

    std::vector<ZeroGroup> some;
    some.push_back({{{"first.weight", net->first->weight}}, "adam"});
    expect_contains(refused([&] { apply_zero_in_backward(ddp, some); }), "is in no group");
    some[0].parameters = {{"first.weight", other->first->weight}};
    expect_contains(refused([&] { apply_zero_in_backward(ddp, some); }), "is not one that");
    apply_zero_in_backward(ddp, "adam");
    expect_contains(refused([&] { apply_zero_in_backward(ddp, "adam"); }), "already");
    expect_contains(refused([&] { ddp->set_hook(make_hook("fp16")); }), "no place");

    torch::nn::Embedding words(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    DistributedDataParallel sparse(words, group);
    expect_contains(refused([&] { apply_zero_in_backward(sparse, "sgd"); }),
                    "has sparse gradients");
  });
}

}  // namespace
}  // namespace brigade::testing
