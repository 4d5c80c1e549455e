// Sparse gradients under a hook: sparse buckets are averaged as they are, the others go
// through the hook.
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "support/ranks.h"

namespace brigade {
namespace {

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    at::manual_seed(3);
    table = register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 6).sparse(true)));
    layer = register_module("layer", torch::nn::Linear(6, 5));
  }
  at::Tensor forward(const at::Tensor& words) {
    return layer->forward(table->forward(words));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};

std::vector<at::Tensor> gradients(const ProcessGroup& group, const std::string& spec) {
  auto net = std::make_shared<WordsImpl>();
  DistributedDataParallel ddp(net, group);
  if (!spec.empty()) ddp->set_hook(make_hook(spec));
  for (int step = 0; step < 3; ++step) {
    ddp->zero_grad();
    at::Tensor words = at::arange(4) + 3 * group.rank() + step;
    ddp->forward(words).pow(2).sum().backward();
  }
  EXPECT_TRUE(net->table->weight.grad().is_sparse());
  return {net->table->weight.grad().to_dense(), net->layer->weight.grad().clone()};
}

class SparseRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SparseRanks, ::testing::Values(1, 2, 3));

TEST_P(SparseRanks, EmbeddingsAreAveragedExactlyUnderEveryKindOfHook) {
  testing::run_ranks(GetParam(), [](ProcessGroup group) {
    const auto expected = gradients(group, "");
    for (const char* spec :
         {"allreduce", "fp16", "int8", "powersgd:start=0,rank=5,min_rate=0.1"}) {
      SCOPED_TRACE(spec);
      const auto hooked = gradients(group, spec);
      EXPECT_TRUE(at::allclose(hooked[0], expected[0], 1e-5, 1e-7));
      EXPECT_TRUE(at::allclose(hooked[1], expected[1], 5e-2, 5e-2));
    }
  });
}

}  // namespace
}  // namespace brigade
