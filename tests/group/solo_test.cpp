// A group of one rank answers everything that c10d's own code asks of a group.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "brigade/process_group.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor sample() { return at::arange(6, at::kDouble).reshape({2, 3}); }

void expect_done(const c10::intrusive_ptr<c10d::Work>& work, const at::Tensor& output) {
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->wait());
  auto future = work->getFuture();
  ASSERT_TRUE(future->completed());
  EXPECT_TRUE(future->value().toTensorVector().at(0).is_alias_of(output));
  EXPECT_TRUE(at::equal(output, sample()));
}

TEST(SoloBackend, EveryCollectiveIsTheIdentity) {
  testing::run_ranks(1, [](ProcessGroup group) {
    ASSERT_EQ(group.backend(), "solo");
    c10d::ProcessGroup& solo = *group.c10d();
    at::Tensor in = sample(), out = at::zeros({2, 3}, at::kDouble);
    auto fresh = [&] { return out = at::zeros({2, 3}, at::kDouble); };
    Tensors inputs{in}, outputs;
    std::vector<Tensors> lists;
    std::vector<int64_t> none;
    expect_done(solo.allreduce(inputs), in);
    expect_done(solo.allreduce_coalesced(inputs), in);
    expect_done(solo.broadcast(inputs), in);
    expect_done(solo.reduce(inputs), in);
    lists = {{fresh()}};
    expect_done(solo.allgather(lists, inputs), out);
    lists = {{fresh()}};
    expect_done(solo.gather(lists, inputs), out);
    lists = {{fresh()}};
    expect_done(solo.allgather_coalesced(lists, inputs), out);
    fresh();
    expect_done(solo._allgather_base(out, in), out);
    fresh();
    expect_done(solo._reduce_scatter_base(out, in), out);
    fresh();
    expect_done(solo.alltoall_base(out, in, none, none), out);
    outputs = {fresh()};
    expect_done(solo.alltoall(outputs, inputs), out);
    lists = {{in}};
    outputs = {fresh()};
    expect_done(solo.scatter(outputs, lists), out);
    outputs = {fresh()};
    expect_done(solo.reduce_scatter(outputs, lists), out);
    EXPECT_TRUE(solo.barrier()->wait());
    EXPECT_ANY_THROW(solo._allgather_base(out, outputs[0] = at::zeros({7})));
  });
}

TEST(SoloBackend, TakesSparseTensors) {
  testing::run_ranks(1, [](ProcessGroup group) {
    Tensors sparse{sample().to_sparse()};
    group.c10d()->allreduce(sparse)->wait();
    EXPECT_TRUE(at::equal(sparse[0].to_dense(), sample()));
  });
}

// One linear layer under c10d's own Reducer and Logger, as DDP drives them.
void train_one_step(const ProcessGroup& group) {
  at::Tensor weight = at::ones({4, 4}).requires_grad_();
  at::Tensor bias = at::ones({4}).requires_grad_();
  c10d::broadcast_coalesced(group.c10d(), Tensors{weight.detach(), bias.detach()}, 1 << 20,
                            0);
  auto reducer = std::make_shared<c10d::Reducer>(
      Tensors{weight, bias}, std::vector<std::vector<size_t>>{{0, 1}}, group.c10d(),
      std::vector<bool>{false, false}, 1 << 20, /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/true, std::unordered_map<size_t, std::string>{},
      /*first_bucket_bytes_cap=*/1 << 20, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<int64_t>{});
  auto logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  logger->set_construction_data_and_log("Linear", {}, -1, false, false, false);
  for (int step = 0; step < 3; ++step) {
    reducer->prepare_for_forward();
    at::Tensor out = at::addmm(bias, at::ones({2, 4}) * (group.rank() + 1), weight).sum();
    reducer->prepare_for_backward({out});
    out.backward();
    // The mean over ranks of 2 (rank + 1).
    EXPECT_EQ(weight.grad()[0][0].item<double>(), group.size() + 1.0);
    weight.mutable_grad().zero_();
    bias.mutable_grad().zero_();
  }
}

class UnderReducer : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, UnderReducer, ::testing::Values(1, 2, 3));

TEST_P(UnderReducer, AGroupServesReducerAndLogger) {
  testing::run_ranks(GetParam(), train_one_step);
}

TEST_P(UnderReducer, AGroupServesThemWithDetailedDebugging) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
    c10d::setDebugLevelFromEnvironment();
    train_one_step(group);
    train_one_step(group.duplicate());
    group.barrier();
  });
}

}  // namespace
}  // namespace brigade
