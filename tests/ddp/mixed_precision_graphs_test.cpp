// Mixed precision with arguments, graphs, options and neighbours of many kinds.
#include <fstream>

#include "brigade/checkpoint.h"
#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "ddp/mixed_precision_nets.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

MixedPrecision low_params() { return {.param_dtype = kLow}; }
// For comparisons with one process, which adds up in float.
MixedPrecision low_params_exact_sum() {
  return {.param_dtype = kLow, .reduce_dtype = torch::kFloat};
}

// ---- arguments --------------------------------------------------------------------------

struct Pair {
  torch::Tensor a;
  std::optional<torch::Tensor> b;
};
void collect_tensors(Pair& pair, std::vector<at::Tensor*>& found) {
  brigade::collect_tensors(pair.a, found);
  brigade::collect_tensors(pair.b, found);
}
struct Opaque {
  torch::Tensor a;
};
struct ManyArgumentsImpl : torch::nn::Module {
  using Map = std::map<std::string, std::vector<torch::Tensor>>;
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& index, const Map& map,
                        Pair pair, std::tuple<torch::Tensor, int>& tuple,
                        const Opaque& opaque, std::unique_ptr<int> number,
                        const std::string& word) {
    EXPECT_EQ(x.scalar_type(), kLow);
    EXPECT_EQ(index.scalar_type(), torch::kLong);
    EXPECT_EQ(map.at("list").at(1).scalar_type(), kLow);
    EXPECT_EQ(pair.a.scalar_type(), kLow);
    EXPECT_EQ(pair.b->scalar_type(), kLow);
    EXPECT_EQ(std::get<0>(tuple).scalar_type(), kLow);
    EXPECT_EQ(std::get<1>(tuple), 7);
    EXPECT_EQ(opaque.a.scalar_type(), torch::kFloat);
    EXPECT_EQ(*number, 3);
    EXPECT_EQ(word, "word");
    return layer(x + pair.a).index_select(0, index);
  }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(6, 3));
};
TORCH_MODULE(ManyArguments);

TEST(MixedPrecisionArguments, AreCastWhereverTensorsAreFoundAndTheCallersStay) {
  run_ranks(2, [](ProcessGroup group) {
    ManyArguments net = seeded<ManyArguments>();
    DistributedDataParallel ddp(net, group, {.mixed_precision = low_params()});
    auto x = float_batch(0, 4).requires_grad_();
    const auto index = torch::tensor({0, 2});
    const ManyArgumentsImpl::Map map{{"list", {x.detach(), x.detach()}}};
    std::tuple<torch::Tensor, int> tuple{x.detach(), 7};
    Pair pair{x.detach(), x.detach()};
    ddp(x, index, map, pair, tuple, Opaque{x.detach()}, std::make_unique<int>(3), "word")
        .sum()
        .backward();
    EXPECT_EQ(x.grad().scalar_type(), torch::kFloat) << "gradients reach the argument";
    EXPECT_EQ(map.at("list")[1].scalar_type(), torch::kFloat);
    EXPECT_EQ(std::get<0>(tuple).scalar_type(), torch::kFloat);
    EXPECT_EQ(pair.b->scalar_type(), torch::kFloat);
  });
}

// ---- graphs -----------------------------------------------------------------------------

struct TwoHeadsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool use_a, bool use_b) {
    auto h = torch::tanh(body(x));
    auto y = body(x).sum();  // shared: used twice
    if (use_a) y = y + a(h).pow(2).sum();
    if (use_b) y = y + b(h).pow(2).sum();
    return y;
  }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(6, 5));
  torch::nn::Linear a = register_module("a", torch::nn::Linear(5, 2));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(5, 2));
};
TORCH_MODULE(TwoHeads);

void by_hand(TwoHeads& net, const torch::Tensor& x, bool use_a, bool use_b, int ranks) {
  TwoHeads copy = copy_of(net);
  copy->to(kLow);
  copy->forward(x.to(kLow), use_a, use_b).to(torch::kFloat).div(ranks).backward();
  auto own = net->parameters();
  auto lowered = copy->parameters();
  for (size_t i = 0; i < own.size(); ++i) {
    if (!lowered[i].grad().defined()) continue;
    auto part = lowered[i].grad().to(torch::kFloat);
    auto& sum = own[i].mutable_grad();
    sum = sum.defined() ? sum + part : part;
  }
}

TEST(MixedPrecisionGraphs, FindUnusedParametersAndStaticGraphWork) {
  for (bool is_static : {false, true}) {
    for (bool views : {false, true}) {
      run_ranks(2, [=](ProcessGroup group) {
        TwoHeads net = seeded<TwoHeads>();
        TwoHeads alone = seeded<TwoHeads>();
        DistributedDataParallel ddp(net, group,
                                    {.find_unused_parameters = !is_static,
                                     .static_graph = is_static,
                                     .mixed_precision = low_params_exact_sum(),
                                     .bucket_cap_mb = 0.00005,
                                     .gradient_as_bucket_view = views});
        for (int step = 0; step < 4; ++step) {
          ddp->zero_grad();
          alone->zero_grad();
          const bool use_b = !is_static && step % 2 == 1;
          // The ranks differ where that is allowed.
          const auto use_a = [&](int rank) { return is_static || rank == 0; };
          auto pass = [&] {
            ddp(float_batch(2 * step + group.rank(), 4), use_a(group.rank()), use_b)
                .to(torch::kFloat)
                .backward();
            expect_full_precision(*net);
          };
          int passes = 1;
          if (step == 2) {
            auto guard = ddp->no_sync();
            pass();
            ++passes;
          }
          pass();
          for (int i = 0; i < passes; ++i) {
            for (int rank : {0, 1})
              by_hand(alone, float_batch(2 * step + rank, 4), use_a(rank), use_b, 2);
          }
          expect_near_gradients(*alone, *net, 0.02);
        }
      });
    }
  }
}

TEST(MixedPrecisionGraphs, AParameterThatGetsNoGradientIsNamedAndResetHelps) {
  run_ranks(2, [](ProcessGroup group) {
    TwoHeads net = seeded<TwoHeads>();
    DistributedDataParallel ddp(net, group, {.mixed_precision = low_params()});
    const auto x = float_batch(group.rank(), 4);
    ddp(x, true, false).backward();
    expect_full_precision(*net);
    expect_contains(thrown_text<Error>([&] { ddp(x, true, false); }), "'b.weight'");
    expect_full_precision(*net);
    ddp->reset();
    ddp(x, true, true).backward();
    expect_full_precision(*net);
    expect_equal_gradients_on_all_ranks(*net, group);
  });
}

TEST(MixedPrecisionGraphs, ABackwardPassThatFailsIsHealedByReset) {
  run_ranks(2, [](ProcessGroup group) {
    TwoHeads net = seeded<TwoHeads>();
    DistributedDataParallel ddp(net, group, {.mixed_precision = low_params()});
    auto broken = std::make_shared<bool>(true);
    ddp->set_hook(make_hook("broken", [broken](Bucket b, Comm&) -> Task<at::Tensor> {
      if (*broken) throw std::runtime_error("the hook fails");
      co_return b.buffer();
    }));
    const auto x = float_batch(group.rank(), 4);
    expect_contains(thrown_text([&] { ddp(x, true, true).backward(); }), "the hook fails");
    *broken = false;
    ddp->reset();
    expect_full_precision(*net);
    ddp(x, true, true).backward();
    expect_full_precision(*net);
  });
}

// ---- buffers, sparse gradients, uneven inputs -------------------------------------------

TEST(MixedPrecisionBuffers, AreLowInThePassAndKeepWhatForwardWrote) {
  run_ranks(2, [](ProcessGroup group) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                              torch::nn::Linear(8, 3));
    DistributedDataParallel ddp(
        net, group,
        {.mixed_precision = MixedPrecision{.param_dtype = kLow, .buffer_dtype = kLow}});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      loss(ddp(share(float_batch(step, 12), group)), share(float_target(step, 12), group))
          .backward();
      expect_full_precision(*net);
    }
    const auto buffers = net->named_buffers();
    EXPECT_NE(buffers["1.running_mean"].abs().sum().item<float>(), 0);
    EXPECT_EQ(buffers["1.num_batches_tracked"].item<int64_t>(), 3);
    ddp->eval();
    torch::NoGradGuard guard;
    EXPECT_EQ(ddp(float_batch(0, 2)).scalar_type(), kLow);
    expect_full_precision(*net);
  });
}

TEST(MixedPrecisionSparse, GradientsOfEmbeddingsAreAveraged) {
  run_ranks(2, [](ProcessGroup group) {
    torch::manual_seed(1);
    torch::nn::Sequential net(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)),
        torch::nn::Linear(4, 2));
    DistributedDataParallel ddp(net, group, {.mixed_precision = low_params()});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp(torch::tensor({1, 2 + group.rank()})).sum().backward();
      expect_full_precision(*net);
      const auto gradient = net->named_parameters()["0.weight"].grad();
      EXPECT_TRUE(gradient.is_sparse());
      torch::Tensor dense = gradient.to_dense();
      torch::Tensor root = dense.clone();
      group.broadcast(root);
      EXPECT_TRUE(torch::equal(dense, root));
      EXPECT_LE(distance(dense[1], 2 * dense[2]), 1e-6) << "used by both, and by one";
    }
  });
}

TEST(MixedPrecisionJoin, TrainsOnUnevenInputs) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group, {.mixed_precision = low_params()});
    net->extra->weight.requires_grad_();
    torch::optim::SGD sgd(ddp->parameters(), 0.1);
    ddp->join([&] {
      for (int step = 0; step < 2 + group.rank(); ++step) {
        ddp->zero_grad();
        loss(ddp(float_batch(step, 4)), float_target(step, 4)).backward();
        sgd.step();
      }
    });
    expect_full_precision(*net);
    expect_equal_replicas(*net, group);
    expect_contains(thrown_text<ConfigError>(
                        [&] { ddp->join([] {}, {.divide_by_initial_world_size = false}); }),
                    "divide_by_initial_world_size");
  });
}

// ---- optimizers in the backward pass, checkpoints ---------------------------------------

TEST(MixedPrecisionOptimizers, InTheBackwardPassEqualThoseAfterIt) {
  for (int ranks : {1, 2, 4}) {
    for (bool views : {false, true}) {
      run_ranks(ranks, [views](ProcessGroup group) {
        enum Way { kAfter, kAttached, kHook, kTorchHook };
        std::vector<std::vector<torch::Tensor>> results;
        for (Way way : {kAfter, kAttached, kHook, kTorchHook}) {
          Probe net = seeded<Probe>();
          DistributedDataParallel ddp(
              net, group,
              {.parameters_to_ignore = {"extra.weight", "extra.bias"},
               .mixed_precision = low_params(),
               .bucket_cap_mb = kSmallBucket,
               .gradient_as_bucket_view = views});
          auto torch_sgd = std::make_shared<torch::optim::SGD>(
              ddp->core().parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
          auto sgd =
              std::make_shared<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
          if (way == kAttached) optim::apply_optimizer_in_backward(ddp, sgd);
          if (way == kHook)
            ddp->set_hook(optim::hook_then_optimizer(make_hook("allreduce"), sgd));
          if (way == kTorchHook)
            ddp->set_hook(optim::hook_then_optimizer(make_hook("allreduce"),
                                                     optim::functional(torch_sgd)));
          for (int step = 0; step < 4; ++step) {
            ddp->zero_grad();
            loss(ddp(share(float_batch(step, 12), group)),
                 share(float_target(step, 12), group))
                .backward();
            expect_full_precision(*net);
            if (way == kAfter) torch_sgd->step();
          }
          results.push_back(net->parameters());
        }
        for (size_t way = 1; way < results.size(); ++way) {
          for (size_t i = 0; i < results[0].size(); ++i) {
            EXPECT_LE(distance(results[way][i], results[0][i]), 1e-6)
                << "way " << way << ", parameter " << i;
          }
        }
      });
    }
  }
}

TEST(MixedPrecisionCheckpoints, HoldFullPrecisionAndLoadWithoutIt) {
  const TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(
        net, group,
        {.mixed_precision = MixedPrecision{.param_dtype = kLow, .buffer_dtype = kLow}});
    torch::optim::SGD sgd(ddp->parameters(), 0.1);
    loss(ddp(share(float_batch(0, 12), group)), share(float_target(0, 12), group))
        .backward();
    sgd.step();
    const std::vector<CheckpointPart> parts{model_part(*net), hook_part(ddp->core()),
                                            bucket_part(ddp->core())};
    save_checkpoint(folder.path(), 1, group, parts);
    Probe plain = seeded<Probe>(7);
    const std::vector<CheckpointPart> plain_parts{model_part(*plain)};
    EXPECT_EQ(load_checkpoint(folder.path(), group, plain_parts), 1);
    expect_same_parameters(*net, *plain, 0);
    EXPECT_EQ(load_checkpoint(folder.path(), group, parts), 1);
    loss(ddp(share(float_batch(1, 12), group)), share(float_target(1, 12), group))
        .backward();
    expect_full_precision(*net);
  });
}

// ---- options ----------------------------------------------------------------------------

TEST(MixedPrecisionOptions, ThatMakeNoSenseOrDifferAreRefused) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    auto refused = [&](MixedPrecision dtypes) {
      return thrown_text<ConfigError>(
          [&] { DistributedDataParallel ddp(net, group, {.mixed_precision = dtypes}); });
    };
    expect_contains(refused({}), "mixed_precision sets no dtype");
    expect_contains(refused({.param_dtype = torch::kLong}),
                    "mixed_precision.param_dtype is Long");
    expect_contains(refused({.reduce_dtype = at::kFloat8_e5m2}),
                    "mixed_precision.reduce_dtype");
    const auto mine = group.rank() == 0 ? at::kHalf : kLow;
    const auto text = thrown_text<MismatchError>([&] {
      DistributedDataParallel ddp(net, group,
                                  {.mixed_precision = MixedPrecision{.param_dtype = mine}});
    });
    expect_contains(text, "param fp16");
    expect_contains(text, "param bf16");
  });
}

TEST(MixedPrecisionOptions, ReduceDtypeAloneLeavesTheComputationAlone) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group,
                                {.mixed_precision = MixedPrecision{.reduce_dtype = kLow}});
    auto output = ddp(share(float_batch(0, 12), group));
    EXPECT_EQ(output.scalar_type(), torch::kFloat);
    loss(output, share(float_target(0, 12), group)).backward();
    expect_full_precision(*net);
    const auto stats = ddp->hook_stats().last_step;
    EXPECT_EQ(stats.bytes_before, 2 * stats.bytes_sent);
  });
}

}  // namespace
}  // namespace brigade::testing
