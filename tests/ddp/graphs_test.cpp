// Models whose graphs are not a plain chain.
#include "ddp/models.h"

namespace brigade::testing {
namespace {

// Two heads on one body; the caller says which are used.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x, bool use_a, bool use_b) {
    auto h = torch::tanh(body(x));
    auto y = h.sum();
    if (use_a) y = y + a(h).pow(2).sum();
    if (use_b) y = y + b(h).pow(3).sum();
    return y;
  }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(6, 5));
  torch::nn::Linear a = register_module("a", torch::nn::Linear(5, 2));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(5, 2));
};
TORCH_MODULE(Heads);

TEST(ControlFlow, EqualOnAllRanksTrainsWhatIsUsedAndLeavesTheRestAlone) {
  for (bool skip : {false, true}) {
    run_ranks(2, [skip](ProcessGroup group) {
      Heads net = seeded<Heads>();
      Heads alone = seeded<Heads>();
      DistributedDataParallel ddp(net, group,
                                  {.find_unused_parameters = true,
                                   .bucket_cap_mb = 0.00005,
                                   .skip_all_reduce_unused_params = skip});
      for (int step = 0; step < 4; ++step) {
        const bool even = step % 2 == 0;
        ddp->zero_grad();
        alone->zero_grad();
        ddp(share(batch(step, 8), group), even, !even).div(8).backward();
        alone(batch(step, 8), even, !even).div(8 * group.size()).backward();
        EXPECT_NE(net->a->weight.grad().defined(), net->b->weight.grad().defined());
        expect_same_gradients(*alone, *net);
      }
    });
  }
}

TEST(ControlFlow, DifferentAcrossRanksAveragesOverAllOfThem) {
  for (bool views : {false, true}) {
    run_ranks(3, [views](ProcessGroup group) {
      Heads net = seeded<Heads>();
      Heads alone = seeded<Heads>();
      DistributedDataParallel ddp(
          net, group, {.find_unused_parameters = true, .gradient_as_bucket_view = views});
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        alone->zero_grad();
        auto use_a = [](int rank) { return rank == 0; };
        for (int rank = 0; rank < group.size(); ++rank) {
          alone(batch(step * 5 + rank, 4), use_a(rank), !use_a(rank)).div(3).backward();
        }
        ddp(batch(step * 5 + group.rank(), 4), use_a(group.rank()), !use_a(group.rank()))
            .backward();
        expect_same_gradients(*alone, *net);
      }
    });
  }
}

TEST(UnusedParameters, ThatAreNotLookedForAreNamedByTheNextPassAndResetHelps) {
  run_ranks(2, [](ProcessGroup group) {
    Heads net = seeded<Heads>();
    DistributedDataParallel ddp(net, group);
    ddp(share(batch(0, 8), group), true, false).backward();
    auto text = thrown_text<Error>([&] { ddp(share(batch(1, 8), group), true, false); });
    expect_contains(text, "'b.weight', 'b.bias'");
    expect_contains(text, "find_unused_parameters");
    EXPECT_EQ(text.find("'a."), std::string::npos) << text;

    ddp->reset();
    Heads alone = seeded<Heads>();
    ddp(share(batch(1, 8), group), true, true).backward();
    alone(batch(1, 8), true, true).div(2).backward();
    expect_same_gradients(*alone, *net);
  });
}

// Returns all results in a type of the user's.
struct Output {
  torch::Tensor a;
  std::optional<torch::Tensor> b;
  int rows = 0;
};
void collect_tensors(Output& output, std::vector<at::Tensor*>& found) {
  brigade::collect_tensors(output.a, found);
  brigade::collect_tensors(output.b, found);
}
struct StructuredImpl : HeadsImpl {
  Output forward(const torch::Tensor& x) {
    auto h = torch::tanh(body(x));
    return {a(h), b(h), static_cast<int>(x.size(0))};
  }
};
TORCH_MODULE(Structured);

TEST(Results, InATypeOfTheUsersAreFoundAndTheUnusedOnesDoNotStall) {
  run_ranks(2, [](ProcessGroup group) {
    Structured net = seeded<Structured>();
    Structured alone = seeded<Structured>();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      auto output = ddp(share(batch(step, 8), group));
      EXPECT_EQ(output.rows, 4);
      (step == 1 ? output.a.sum() + output.b->sum() : output.a.sum()).backward();
      auto expected = alone(batch(step, 8));
      (step == 1 ? expected.a.sum() + expected.b->sum() : expected.a.sum())
          .div(2)
          .backward();
      expect_same_gradients(*alone, *net);
    }
  });
}

using Nested = std::tuple<std::map<std::string, std::vector<torch::Tensor>>,
                          std::pair<int, torch::Tensor>, std::array<torch::Tensor, 1>>;
struct NestedNetImpl : HeadsImpl {
  Nested forward(const torch::Tensor& x) {
    auto h = torch::tanh(body(x));
    return {{{"heads", {a(h), b(h)}}}, {3, h.sum()}, {h.mean()}};
  }
};
TORCH_MODULE(NestedNet);

TEST(Results, InNestedContainersAreFound) {
  run_ranks(2, [](ProcessGroup group) {
    NestedNet net = seeded<NestedNet>();
    NestedNet alone = seeded<NestedNet>();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    auto loss = [](Nested& out) {
      return std::get<0>(out)["heads"][1].pow(2).sum() + std::get<1>(out).second +
             std::get<2>(out)[0];
    };
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      auto out = ddp(batch(step + 3 * group.rank(), 4));
      loss(out).backward();
      for (int rank = 0; rank < 2; ++rank) {
        auto expected = alone(batch(step + 3 * rank, 4));
        loss(expected).div(2).backward();
      }
      EXPECT_FALSE(net->a->weight.grad().defined());
      expect_same_gradients(*alone, *net);
    }
  });
}

TEST(Results, CollectTensorsGivesAddressesInOrder) {
  torch::Tensor a, b, c;
  auto value =
      std::make_tuple(a, std::vector{b}, std::unordered_map<int, at::Tensor>{{1, c}},
                      std::optional<at::Tensor>(), 3, std::string("x"), true);
  std::vector<at::Tensor*> found;
  brigade::collect_tensors(value, found);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0], &std::get<0>(value));
  EXPECT_EQ(found[1], &std::get<1>(value)[0]);
  EXPECT_EQ(found[2], &std::get<2>(value)[1]);
}

// Has results without gradients, and tensors made on the way.
struct MixedImpl : HeadsImpl {
  std::vector<torch::Tensor> forward(const torch::Tensor& x) {
    auto made = torch::ones({5}, torch::dtype(torch::kDouble).requires_grad(true));
    auto h = torch::tanh(body(x)) * made;
    auto y = a(h) + b(h);
    return {y, y.detach(), y.argmax(1), x, made};
  }
};
TORCH_MODULE(Mixed);

TEST(Results, WithoutGradientsAndNewTensorsAreLeftAlone) {
  for (bool find_unused : {false, true}) {
    run_ranks(2, [find_unused](ProcessGroup group) {
      Mixed net = seeded<Mixed>();
      Mixed alone = seeded<Mixed>();
      DistributedDataParallel ddp(net, group, {.find_unused_parameters = find_unused});
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        alone->zero_grad();
        auto x = share(batch(step, 8), group);
        auto out = ddp(x);
        EXPECT_FALSE(out[1].requires_grad());
        EXPECT_TRUE(out[3].is_same(x));
        out[0].sum().backward();
        EXPECT_TRUE(out[4].grad().defined());
        alone(batch(step, 8))[0].sum().div(2).backward();
        expect_same_gradients(*alone, *net);
      }
    });
  }
}

TEST(Results, ChangedInPlaceBehaveAsWithoutDdp) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    Net alone = seeded();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    ddp(share(batch(0, 12), group)).mul_(2).sum().backward();
    alone(batch(0, 12)).mul_(2).sum().div(2).backward();
    expect_same_gradients(*alone, *net);
  });
}

TEST(RequiresGrad, FrozenLayersAreLeftOutAndInputsGetTheirOwnGradients) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded(group.rank() + 1);
    Net alone = seeded();
    for (auto* each : {&net, &alone}) (*each)->first->weight.requires_grad_(false);
    DistributedDataParallel ddp(net, group);
    expect_same_parameters(*alone, *net, 0);  // frozen ones were broadcast too
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      auto x = share(batch(step, 12), group).clone().requires_grad_(true);
      ddp(x).sum().backward();
      auto all = batch(step, 12).requires_grad_(true);
      alone(all).sum().backward();
      EXPECT_LE(distance(x.grad(), share(all.grad(), group)), 1e-12);
      for (auto& p : alone->parameters()) {
        if (p.grad().defined()) p.mutable_grad().div_(2);
      }
      EXPECT_FALSE(net->first->weight.grad().defined());
      expect_same_gradients(*alone, *net);
    }
  });
}

TEST(RequiresGrad, ALayerWithoutOutputsTrains) {
  run_ranks(2, [](ProcessGroup group) {
    torch::nn::Sequential net(torch::nn::Linear(6, 4), torch::nn::Linear(4, 0));
    net->to(torch::kDouble);
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) ddp(batch(step, 4)).sum().backward();
    EXPECT_EQ(net->parameters()[0].grad().abs().sum().item<double>(), 0);
  });
}

TEST(CreateGraph, AGradientPenaltyIsDifferentiatedThroughTheWrapper) {
  for (bool find_unused : {false, true}) {
    run_ranks(2, [find_unused](ProcessGroup group) {
      Net net = seeded();
      Net alone = seeded();
      DistributedDataParallel ddp(net, group, {.find_unused_parameters = find_unused});
      auto penalized = [](auto& model, torch::Tensor x) {
        x = x.clone().requires_grad_(true);
        auto y = model(x).sum();
        auto slope = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
        return y + slope.pow(2).sum();
      };
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        alone->zero_grad();
        penalized(ddp, share(batch(step, 12), group)).backward();
        penalized(alone, batch(step, 12)).div(2).backward();
        expect_same_gradients(*alone, *net);
      }
    });
  }
}

struct SquareImpl : torch::nn::Module {
  torch::Tensor forward(double factor) { return p.pow(2) * factor; }
  torch::Tensor p = register_parameter("p", torch::full({}, 3.0, torch::kDouble));
};
TORCH_MODULE(Square);

// The Reducer cannot take such gradients of more than one parameter, as in Python.
TEST(CreateGraph, BackwardWithCreateGraphAveragesOneParameter) {
  run_ranks(2, [](ProcessGroup group) {
    Square net;
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 4; ++step) {
      ddp->zero_grad();
      ddp(group.rank() + 1.0).backward({}, true, /*create_graph=*/true);
      EXPECT_NEAR(net->p.grad().item<double>(), 2 * 3.0 * 1.5, 1e-12);
    }
    ddp->zero_grad(/*set_to_none=*/false);  // detaches what has a graph
    EXPECT_FALSE(net->p.grad().requires_grad());
    EXPECT_EQ(net->p.grad().item<double>(), 0);
  });
}

// Has one weight under two names, and a layer used twice.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    to(torch::kDouble);
    tied = register_parameter("tied", encode->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = twice(torch::tanh(twice(torch::tanh(encode(x)))));
    return torch::matmul(h, tied);
  }
  torch::nn::Linear encode = register_module("encode", torch::nn::Linear(6, 5));
  torch::nn::Linear twice = register_module("twice", torch::nn::Linear(5, 5));
  torch::Tensor tied;
};
TORCH_MODULE(Shared);

TEST(SharedParameters, AreReducedOnce) {
  for (bool find_unused : {false, true}) {
    run_ranks(2, [find_unused](ProcessGroup group) {
      Shared net = seeded<Shared>();
      Shared alone = seeded<Shared>();
      DistributedDataParallel ddp(net, group, {.find_unused_parameters = find_unused});
      EXPECT_EQ(ddp->core().parameters().size(), 4U);
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        alone->zero_grad();
        ddp(share(batch(step, 8), group)).pow(2).sum().backward();
        alone(batch(step, 8)).pow(2).sum().div(2).backward();
        expect_same_gradients(*alone, *net);
      }
    });
  }
}

TEST(StaticGraph, UnusedAndRepeatedParametersTrainWithAccumulationToo) {
  for (bool views : {false, true}) {
    run_ranks(2, [views](ProcessGroup group) {
      Heads net = seeded<Heads>();
      Heads alone = seeded<Heads>();
      DistributedDataParallel ddp(net, group,
                                  {.static_graph = true,
                                   .bucket_cap_mb = 0.00005,
                                   .gradient_as_bucket_view = views});
      int number = 0;
      for (int round = 0; round < 5; ++round) {
        ddp->zero_grad();
        alone->zero_grad();
        // Rounds differ in length, so that accumulating passes come at every position.
        for (int left = round % 3; left >= 0; --left, ++number) {
          std::optional<NoSync> guard;
          if (left > 0) guard.emplace(ddp->no_sync());
          // b is never used, the body twice.
          auto x = share(batch(number, 8), group);
          (ddp(x, true, false)).backward();
          alone(batch(number, 8), true, false).div(2).backward();
        }
        expect_same_gradients(*alone, *net);
      }
      EXPECT_GT(ddp->logging_data().bucket_bytes.size(), 1U);
    });
  }
}

TEST(StaticGraph, AccumulationBeforeTheFirstSynchronisedPassIsKept) {
  run_ranks(2, [](ProcessGroup group) {
    Net net = seeded();
    Net alone = seeded();
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    for (int step = 0; step < 4; ++step) {
      std::optional<NoSync> guard;
      if (step < 2) guard.emplace(ddp->no_sync());
      if (step == 3) ddp->zero_grad(), alone->zero_grad();
      ddp(share(batch(step, 12), group)).sum().backward();
      alone(batch(step, 12)).sum().div(2).backward();
      if (step >= 2) expect_same_gradients(*alone, *net);
    }
  });
}

TEST(StaticGraph, AParameterThatComesIntoUseLaterIsAnError) {
  run_ranks(2, [](ProcessGroup group) {
    Heads net = seeded<Heads>();
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    for (int step = 0; step < 2; ++step) {
      ddp(share(batch(step, 8), group), true, false).backward();
    }
    expect_contains(
        thrown_text([&] { ddp(share(batch(2, 8), group), true, true).backward(); }),
        "graph has changed");
  });
}

TEST(StaticGraph, AParameterThatGoesOutOfUseIsNamedByTheNextPass) {
  run_ranks(2, [](ProcessGroup group) {
    Heads net = seeded<Heads>();
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    for (int step = 0; step < 2; ++step) {
      ddp(share(batch(step, 8), group), true, true).backward();
    }
    ddp(share(batch(2, 8), group), true, false).backward();
    expect_contains(thrown_text<Error>([&] { ddp(share(batch(3, 8), group), true, true); }),
                    "'b.weight'");
  });
}

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse = true)
      : table(register_module(
            "table",
            torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(sparse)))),
        bag(register_module(
            "bag",
            torch::nn::EmbeddingBag(
                torch::nn::EmbeddingBagOptions(10, 4).sparse(sparse).mode(torch::kSum)))),
        linear(register_module("linear", torch::nn::Linear(4, 2))) {
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& words) {
    return linear(table(words).sum(1) + bag(words));
  }
  torch::nn::Embedding table;
  torch::nn::EmbeddingBag bag;
  torch::nn::Linear linear;
};
TORCH_MODULE(Words);

TEST(SparseGradients, OfEmbeddingsAreAveragedAndStaySparse) {
  run_ranks(3, [](ProcessGroup group) {
    Words net = seeded<Words>();
    Words alone = seeded<Words>();
    DistributedDataParallel ddp(net, group);
    auto words = [](int step, int rank) {
      return (torch::arange(6).reshape({2, 3}) * (rank + 1) + step) % 10;
    };
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      ddp(words(step, group.rank())).pow(2).sum().backward();
      for (int rank = 0; rank < 3; ++rank) {
        alone(words(step, rank)).pow(2).sum().div(3).backward();
      }
      EXPECT_TRUE(net->table->weight.grad().is_sparse());
      expect_same_gradients(*alone, *net);
    }
  });
}

}  // namespace
}  // namespace brigade::testing
