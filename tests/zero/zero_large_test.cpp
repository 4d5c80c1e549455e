// Parameters that are large enough to be sent and received in place.
#include "brigade/brigade.h"
#include "zero/zero_models.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

// Has a matrix whose quarter exceeds kInPlaceBytes and cannot be divided by 2, 3 or 4, one
// in another layout, and small ones.
torch::nn::Sequential make_large(torch::Dtype dtype = torch::kFloat) {
  torch::manual_seed(1);
  torch::NoGradGuard no_grad;
  torch::nn::Linear turned(1101, 1103);
  turned->weight.set_data(turned->weight.t().contiguous().t());
  torch::nn::Sequential net(torch::nn::Linear(7, 1031), torch::nn::Tanh(),
                            torch::nn::Linear(1031, 1101), torch::nn::Tanh(), turned,
                            torch::nn::Linear(1103, 3));
  net->to(dtype);
  return net;
}
using LargeDdp = DistributedDataParallel<torch::nn::SequentialImpl>;

void train_large(LargeDdp& ddp, int step, torch::Dtype dtype = torch::kFloat) {
  ddp->zero_grad();
  torch::manual_seed(100 * step + ddp->group().rank());
  torch::Tensor x = torch::randn({2, 7}, torch::kFloat).to(dtype);
  ddp->forward(x).square().mean().backward();
}

// `how` is as in Training. Returns the net after some steps.
torch::nn::Sequential train_large(const ProcessGroup& group, How how,
                                  const DdpOptions& options,
                                  torch::Dtype dtype = torch::kFloat) {
  torch::nn::Sequential net = make_large(dtype);
  LargeDdp ddp(net, group, options);
  const auto in_order = make_hook("in order", mean_in_order);
  const auto plain = make_optimizer("adam:lr=0.01");
  std::shared_ptr<ZeroRedundancyOptimizer> zero;
  if (how == How::reduce_scatter) {
    apply_zero_in_backward(ddp, "adam:lr=0.01");
  } else {
    ddp->set_hook(in_order);
    if (how != How::plain)
      zero = std::make_shared<ZeroRedundancyOptimizer>(
          ddp, "adam:lr=0.01",
          ZeroOptions{.parameters_as_bucket_view = how == How::step_views});
    if (how == How::after_last) ddp->set_hook(hook_with_zero_step(in_order, ddp, zero));
    if (how == How::interleaved)
      ddp->set_hook(hook_with_zero_step_interleaved(in_order, ddp, zero));
  }
  for (int step = 0; step < 3; ++step) {
    train_large(ddp, step, dtype);
    if (how == How::step || how == How::step_views) zero->step();
    if (how != How::plain) continue;
    for (const auto& parameter : net->parameters())
      plain->step_param(parameter, parameter.grad());
  }
  return net;
}

TEST(ZeroLarge, TrainsLikeTheOptimizerOnEveryRankToTheLastBit) {
  for (int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      DdpOptions options{.gradient_as_bucket_view = group.size() % 2 == 0};
      const auto expected = train_large(group, How::plain, options)->named_parameters();
      std::vector<How> forms = kZeroSteps;
      forms.push_back(How::reduce_scatter);
      for (const How how : forms) {
        auto net = train_large(group, how, options);
        EXPECT_FALSE(net[4]->named_parameters()["weight"].is_contiguous());
        for (const auto& item : net->named_parameters())
          EXPECT_TRUE(torch::equal(item.value(), expected[item.key()]))
              << describe(how, {}) << ": " << item.key();
      }
    });
  }
}

TEST(ZeroLarge, TheReduceScatterFormTakesOtherDtypes) {
  for (int ranks : {2, 3}) {
    run_ranks(ranks, [](ProcessGroup group) {
      for (const auto dtype : {torch::kDouble, torch::kBFloat16}) {
        const DdpOptions options{};
        const auto net = train_large(group, How::reduce_scatter, options, dtype);
        const auto expected = train_large(group, How::plain, options, dtype);
        for (const auto& item : net->named_parameters()) {
          torch::Tensor root = item.value().detach().clone(torch::MemoryFormat::Contiguous);
          group.broadcast(root);
          EXPECT_TRUE(torch::equal(root, item.value())) << item.key();
          // Adam enlarges the last bit of a small gradient, so only most elements are
          // equal.
          const auto off = (item.value() - expected->named_parameters()[item.key()]).abs();
          EXPECT_LE(off.mean().item<double>(), dtype == torch::kDouble ? 0 : 2e-3)
              << item.key();
        }
      }
    });
  }
}

TEST(ZeroLarge, AutogradFindsOutThatAParameterHasChanged) {
  run_ranks(2, [](ProcessGroup group) {
    torch::nn::Sequential net = make_large();
    LargeDdp ddp(net, group);
    ZeroRedundancyOptimizer zero(ddp, "sgd:lr=0.1");
    train_large(ddp, 0);
    std::vector<uint32_t> before;
    for (const auto& parameter : net->parameters()) before.push_back(parameter._version());
    zero.step();
    apply_zero_in_backward(ddp, "sgd:lr=0.1");
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_GT(net->parameters()[i]._version(), before[i]) << i;
      before[i] = net->parameters()[i]._version();
    }
    train_large(ddp, 1);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_GT(net->parameters()[i]._version(), before[i]) << i;
  });
}

TEST(ZeroLarge, TheReduceScatterFormMovesWhatAnAllReduceMoves) {
  for (int ranks : {2, 3, 4}) {
    run_ranks(ranks, [](ProcessGroup group) {
      torch::nn::Sequential net = make_large();
      LargeDdp ddp(net, group);
      apply_zero_in_backward(ddp, "sgd:lr=0.1");
      for (int step = 0; step < 3; ++step) train_large(ddp, step);
      const HookTraffic traffic = ddp->hook_stats().last_step;
      const double share = 2.0 * (group.size() - 1) / group.size();
      EXPECT_NEAR(static_cast<double>(traffic.bytes_sent),
                  share * static_cast<double>(traffic.bytes_before),
                  0.01 * static_cast<double>(traffic.bytes_before));
    });
  }
}

}  // namespace
}  // namespace brigade::testing
