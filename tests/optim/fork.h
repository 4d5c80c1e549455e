// A network for optimizers that step in the backward pass.
#pragma once
#include "ddp/models.h"

namespace brigade::testing {

// Has three layers, of which `second` may be left out, and one parameter in another layout.
struct ForkImpl : torch::nn::Module {
  explicit ForkImpl(torch::ScalarType dtype = torch::kFloat) {
    torch::NoGradGuard no_grad;
    mixed.set_data(mixed.t().contiguous().t());  // dense, but not in row order
    to(dtype);
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_second = true) {
    auto y = torch::tanh(torch::matmul(first(x), mixed));
    if (use_second) y = y + second(y);
    return last(y);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 3));
  torch::Tensor mixed = register_parameter("mixed", torch::randn({16, 16}) / 4);
};
TORCH_MODULE(Fork);

inline Fork make_fork(torch::ScalarType dtype = torch::kFloat) {
  torch::manual_seed(1);
  return Fork(dtype);
}

using Ddp = DistributedDataParallel<ForkImpl>;

inline void backward(Ddp& ddp, int number, bool use_second) {
  const auto dtype = ddp->module()->mixed.scalar_type();
  auto x = share(batch(number, 12), ddp->group()).to(dtype);
  auto y = share(target(number, 12), ddp->group()).to(dtype);
  torch::mse_loss(ddp(x, use_second), y).backward();
}

inline void expect_same_bits(const std::vector<torch::Tensor>& a,
                             const std::vector<torch::Tensor>& b, const std::string& what) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ", parameter " << i;
  }
}

}  // namespace brigade::testing
