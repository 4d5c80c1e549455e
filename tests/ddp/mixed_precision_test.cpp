// The types that a pass with mixed precision computes in, and those it leaves behind.
#include "brigade/hooks.h"
#include "ddp/mixed_precision_nets.h"

namespace brigade::testing {
namespace {

struct PassCase : DdpSetting {
  PassCase(int ranks, bool views, bool several_buckets, at::ScalarType dtype)
      : DdpSetting{ranks, views, several_buckets}, dtype(dtype) {}
  at::ScalarType dtype;
};
class MixedPrecisionPass : public ::testing::TestWithParam<PassCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, MixedPrecisionPass,
    ::testing::Values(PassCase{1, false, false, kLow}, PassCase{1, true, true, kLow},
                      PassCase{2, false, true, kLow}, PassCase{2, true, true, kLow},
                      PassCase{2, true, false, at::kHalf},
                      PassCase{4, false, true, at::kHalf}, PassCase{4, true, true, kLow}),
    [](const auto& info) { return name_of(info.param) + c10::toString(info.param.dtype); });

DdpOptions pass_options(const PassCase& c) {
  DdpOptions options{.parameters_to_ignore = {"extra.weight", "extra.bias"},
                     .mixed_precision = MixedPrecision{.param_dtype = c.dtype},
                     .gradient_as_bucket_view = c.views};
  if (c.several_buckets) options.bucket_cap_mb = kSmallBucket;
  return options;
}

TEST_P(MixedPrecisionPass, ComputesInParamDtypeAndLeavesFullPrecision) {
  run_ranks(GetParam().ranks, [](ProcessGroup group) {
    const at::ScalarType low = GetParam().dtype;
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group, pass_options(GetParam()));
    // Otherwise the ignored layers would differ between the ranks.
    torch::optim::SGD sgd(ddp->core().parameters(),
                          torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      const auto x = float_batch(step, 12);
      const auto y = float_target(step, 12);
      Probe alone = copy_of(net);
      backward_by_hand(alone, x, y, group.size(), low);
      ddp->zero_grad(/*set_to_none=*/step % 2 == 0);
      auto output = ddp(share(x, group));
      EXPECT_EQ(output.scalar_type(), low);
      EXPECT_EQ(net->input, low);
      EXPECT_EQ(net->trained, low);
      EXPECT_EQ(net->without_gradient, low);
      EXPECT_EQ(net->ignored, torch::kFloat);
      EXPECT_EQ(net->buffer, torch::kFloat);
      loss(output, share(y, group)).backward();
      expect_full_precision(*net);
      expect_equal_gradients_on_all_ranks(*net, group);
      EXPECT_FALSE(net->frozen->weight.grad().defined());
      // The gradients of `ranks` ranks, in halves, are added up in halves.
      expect_near_gradients(*alone, *net, group.size() == 1 ? 0 : 0.02);
      if (step > 0) {
        const auto log = ddp->logging_data();
        EXPECT_EQ(log.bucket_bytes.size(), GetParam().several_buckets ? 2U : 1U);
      }
      sgd.step();
    }
    for (const auto& item : net->named_parameters()) {
      if (!item.key().starts_with("extra")) {
        torch::Tensor root = item.value().detach().clone();
        group.broadcast(root);
        EXPECT_TRUE(torch::equal(root, item.value())) << item.key();
      }
    }
  });
}

TEST_P(MixedPrecisionPass, AccumulatesInFullPrecisionUnderNoSync) {
  run_ranks(GetParam().ranks, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    Probe alone = seeded<Probe>();
    auto options = pass_options(GetParam());
    options.mixed_precision->reduce_dtype = torch::kFloat;
    DistributedDataParallel ddp(net, group, options);
    for (int round = 0; round < 3; ++round) {
      ddp->zero_grad();
      alone->zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        const auto x = float_batch(3 * round + micro, 12);
        const auto y = float_target(3 * round + micro, 12);
        backward_by_hand(alone, x, y, group.size(), GetParam().dtype);
        auto pass = [&] { loss(ddp(share(x, group)), share(y, group)).backward(); };
        if (micro < 2) {
          auto guard = ddp->no_sync();
          pass();
        } else {
          pass();
        }
        expect_full_precision(*net);
      }
      for (const auto& name : {"first.weight", "middle.bias", "last.weight"}) {
        EXPECT_LE(distance(net->named_parameters()[name].grad(),
                           alone->named_parameters()[name].grad()),
                  1e-6)
            << name;
      }
    }
  });
}

// Records its arguments.
struct Recorded {
  std::set<at::ScalarType> buckets, parameters;
  std::mutex mutex;
};
std::shared_ptr<Hook> recording(std::shared_ptr<Recorded> recorded) {
  return make_hook("recording", [recorded](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    {
      std::lock_guard lock(recorded->mutex);
      recorded->buckets.insert(bucket.buffer().scalar_type());
      for (const auto& parameter : bucket.parameters())
        recorded->parameters.insert(parameter.scalar_type());
    }
    at::Tensor mean = bucket.buffer().div_(comm.size());
    co_await comm.all_reduce(mean);
    co_return mean;
  });
}

TEST(MixedPrecisionTraffic, IsInReduceDtypeAndHalfTheBytes) {
  for (int ranks : {2, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      std::map<at::ScalarType, int64_t> sent;
      for (at::ScalarType reduce : {torch::kFloat, kLow}) {
        Probe net = seeded<Probe>();
        DistributedDataParallel ddp(
            net, group,
            {.parameters_to_ignore = {"extra.weight", "extra.bias"},
             .mixed_precision =
                 MixedPrecision{.param_dtype = at::kHalf, .reduce_dtype = reduce},
             .bucket_cap_mb = kSmallBucket});
        auto recorded = std::make_shared<Recorded>();
        for (auto hook : {std::shared_ptr<Hook>(), recording(recorded)}) {
          ddp->set_hook(hook);
          EXPECT_EQ(ddp->hook(), hook);
          for (int step = 0; step < 3; ++step) {
            ddp->zero_grad();
            loss(ddp(share(float_batch(step, 12), group)),
                 share(float_target(step, 12), group))
                .backward();
          }
          const auto traffic = ddp->hook_stats().last_step;
          const auto before = sent.emplace(reduce, traffic.bytes_sent);
          EXPECT_EQ(before.first->second, traffic.bytes_sent);
        }
        EXPECT_EQ(recorded->buckets, std::set<at::ScalarType>{reduce});
        EXPECT_EQ(recorded->parameters, std::set<at::ScalarType>{torch::kFloat})
            << "a hook finds the parameters of its bucket in full precision";
      }
      EXPECT_GT(sent[kLow], 0);
      EXPECT_EQ(sent[torch::kFloat], 2 * sent[kLow]);
    });
  }
}

TEST(MixedPrecisionTraffic, GoesThroughEveryHookOfTheTable) {
  run_ranks(2, [](ProcessGroup group) {
    for (const HookEntry& entry : hook_table()) {
      if (entry.tolerance < 0) continue;
      std::string spec(entry.name);
      if (std::ranges::count(entry.options, "start") > 0) spec += ":start=1";
      Probe net = seeded<Probe>();
      Probe alone = seeded<Probe>();
      DistributedDataParallel ddp(net, group,
                                  {.parameters_to_ignore = {"extra.weight", "extra.bias"},
                                   .mixed_precision = MixedPrecision{.param_dtype = kLow},
                                   .bucket_cap_mb = kSmallBucket});
      ddp->set_hook(make_hook(spec));
      for (int step = 0; step < 3; ++step) {
        ddp->zero_grad();
        loss(ddp(share(float_batch(step, 12), group)), share(float_target(step, 12), group))
            .backward();
        expect_full_precision(*net);
        expect_equal_gradients_on_all_ranks(*net, group);
        if (entry.error_feedback && step > 0) continue;
        alone->zero_grad();
        backward_by_hand(alone, float_batch(step, 12), float_target(step, 12), 2, kLow);
        const auto exact = flat_gradient(*alone);
        EXPECT_LE((flat_gradient(*net) - exact).norm().item<double>(),
                  (entry.tolerance + 0.02) * exact.norm().item<double>())
            << spec;
      }
    }
  });
}

TEST(MixedPrecisionMemory, OfTheCopiesIsFreedWhenBackwardEnds) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group,
                                {.parameters_to_ignore = {"extra.weight", "extra.bias"},
                                 .mixed_precision = MixedPrecision{.param_dtype = kLow},
                                 .bucket_cap_mb = kSmallBucket});
    for (int step = 0; step < 3; ++step) {
      auto output = ddp(share(float_batch(step, 12), group));
      for (auto& storage : net->low_storages) EXPECT_FALSE(storage.expired());
      loss(output, share(float_target(step, 12), group)).backward();
      const auto names = net->named_parameters().keys();
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(net->low_storages[i].expired(), !names[i].starts_with("extra"))
            << names[i];
      }
    }
  });
}

class MixedPrecisionForward : public ::testing::Test {
 protected:
  static DdpOptions options() {
    return {.parameters_to_ignore = {"extra.weight", "extra.bias"},
            .mixed_precision = MixedPrecision{.param_dtype = kLow, .buffer_dtype = kLow},
            .bucket_cap_mb = kSmallBucket};
  }
};

TEST_F(MixedPrecisionForward, WithoutBackwardCanBeFollowedByAnother) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    Probe other_net = seeded<Probe>();
    DistributedDataParallel ddp(net, group, options());
    DistributedDataParallel other(other_net, group, options());
    for (int step = 0; step < 3; ++step) {
      const auto x = share(float_batch(step, 12), group);
      const auto y = share(float_target(step, 12), group);
      ddp->zero_grad();
      other->zero_grad();
      for (int i = 0; i < 2; ++i) ddp(x);
      loss(ddp(x), y).backward();
      loss(other(x), y).backward();
      expect_full_precision(*net);
      for (const auto& item : net->named_parameters()) {
        if (!item.value().grad().defined()) continue;
        EXPECT_TRUE(torch::equal(item.value().grad(),
                                 other_net->named_parameters()[item.key()].grad()));
      }
    }
  });
}

TEST_F(MixedPrecisionForward, TwiceBeforeOneBackwardAddsUpBoth) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    Probe alone = seeded<Probe>();
    auto exact = options();
    exact.mixed_precision->reduce_dtype = torch::kFloat;
    exact.mixed_precision->buffer_dtype.reset();
    exact.broadcast_buffers = false;
    DistributedDataParallel ddp(net, group, exact);
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      alone->zero_grad();
      torch::Tensor sum;
      for (int part : {0, 1}) {
        const auto x = float_batch(2 * step + part, 12);
        const auto y = float_target(2 * step + part, 12);
        backward_by_hand(alone, x, y, 2, kLow);
        auto value = loss(ddp(share(x, group)), share(y, group));
        sum = part == 0 ? value : sum + value;
      }
      sum.backward();
      expect_full_precision(*net);
      EXPECT_LE(distance(net->first->weight.grad(), alone->first->weight.grad()), 1e-6);
      EXPECT_LE(distance(net->last->bias.grad(), alone->last->bias.grad()), 1e-6);
    }
  });
}

TEST_F(MixedPrecisionForward, WithoutGradientsIsLowAndPutsBackAtOnce) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group, options());
    const auto x = share(float_batch(0, 12), group);
    torch::Tensor alone;
    {
      torch::NoGradGuard guard;
      alone = ddp(x);
      EXPECT_EQ(alone.scalar_type(), kLow);
      EXPECT_EQ(net->trained, kLow);
      EXPECT_EQ(net->buffer, kLow);
      expect_full_precision(*net);
    }
    // Works between a forward pass and its backward pass, too.
    auto output = ddp(x);
    {
      torch::NoGradGuard guard;
      EXPECT_TRUE(torch::equal(ddp(x), alone));
      net->fails = true;
      EXPECT_THROW(ddp(x), std::runtime_error);
      net->fails = false;
    }
    loss(output, share(float_target(0, 12), group)).backward();
    expect_full_precision(*net);
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST_F(MixedPrecisionForward, ThatThrowsLeavesFullPrecisionAndTheNextPassTrains) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group, options());
    for (bool gradients : {true, false}) {
      at::AutoGradMode mode(gradients);
      net->fails = true;
      expect_contains(thrown_text([&] { ddp(share(float_batch(0, 12), group)); }),
                      "forward fails");
      EXPECT_EQ(net->trained, kLow) << "it came so far";
      expect_full_precision(*net);
      net->fails = false;
    }
    for (int step = 0; step < 2; ++step) {
      loss(ddp(share(float_batch(step, 12), group)), share(float_target(step, 12), group))
          .backward();
      expect_full_precision(*net);
    }
    expect_equal_gradients_on_all_ranks(*net, group);
  });
}

TEST_F(MixedPrecisionForward, NoticesAParameterThatWasChangedBeforeBackward) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    DistributedDataParallel ddp(net, group, options());
    torch::optim::SGD sgd(ddp->parameters(), 0.1);
    const auto x = share(float_batch(0, 12), group);
    loss(ddp(x), share(float_target(0, 12), group)).backward();
    const auto before = net->middle->weight.detach().clone();
    ddp(x);
    sgd.step();  // the copies
    const auto text = thrown_text<Error>([&] { ddp(x); });
    expect_contains(text, "parameter '");
    expect_contains(text, "NoGradGuard");
    expect_full_precision(*net);
    EXPECT_TRUE(torch::equal(before, net->middle->weight));
    ddp->zero_grad();
    loss(ddp(x), share(float_target(0, 12), group)).backward();
    expect_full_precision(*net);
  });
}

TEST_F(MixedPrecisionForward, AndItsModelSurviveTheWrapper) {
  run_ranks(2, [](ProcessGroup group) {
    Probe net = seeded<Probe>();
    torch::Tensor output;
    {
      DistributedDataParallel ddp(net, group, options());
      output = ddp(share(float_batch(0, 12), group));
    }
    expect_full_precision(*net);
    EXPECT_EQ(net(float_batch(0, 2)).scalar_type(), torch::kFloat);
  });
}

}  // namespace
}  // namespace brigade::testing
