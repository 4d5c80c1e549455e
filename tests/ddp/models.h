// Small networks, and functions that the tests of this folder share.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "brigade/distributed_data_parallel.h"
#include "support/ranks.h"

namespace brigade::testing {

// Three layers in float64; the middle one is larger than a bucket of kSmallBucket.
struct NetImpl : torch::nn::Module {
  NetImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(middle(torch::tanh(first(x)))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 16));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(16, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 3));
};
TORCH_MODULE(Net);
constexpr double kSmallBucket = 0.0003;  // MiB

template <class Holder = Net>
Holder seeded(int seed = 1) {
  torch::manual_seed(seed);
  return Holder();
}

// How a parametrised test trains its model.
struct DdpSetting {
  int ranks;
  bool views;
  bool several_buckets;
};
inline std::string name_of(const DdpSetting& setting) {
  return std::to_string(setting.ranks) + "Ranks" + (setting.views ? "Views" : "Copies") +
         (setting.several_buckets ? "SeveralBuckets" : "OneBucket");
}

// Row i of batch `step` is the same on every rank.
inline torch::Tensor batch(int step, int64_t rows, int64_t columns = 6) {
  auto row = torch::arange(rows, torch::kDouble).unsqueeze(1);
  auto column = torch::arange(columns, torch::kDouble);
  return torch::sin(row * 0.7 + column * 1.3 + step * 2.1);
}
inline torch::Tensor target(int step, int64_t rows) {
  return torch::cos(batch(step, rows).narrow(1, 0, 3) * 2);
}
// The rows of this rank.
inline torch::Tensor share(const torch::Tensor& all, const ProcessGroup& group) {
  return all.chunk(group.size())[group.rank()];
}

inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  return a.numel() ? (a - b).abs().max().item<double>() : 0;
}

inline void expect_same_parameters(const torch::nn::Module& a, const torch::nn::Module& b,
                                   double tolerance = 1e-12) {
  auto left = a.parameters();
  auto right = b.parameters();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_LE(distance(left[i], right[i]), tolerance) << "parameter " << i;
  }
}

inline void expect_same_gradients(const torch::nn::Module& a, const torch::nn::Module& b,
                                  double tolerance = 1e-12) {
  auto left = a.parameters();
  auto right = b.parameters();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].grad().defined(), right[i].grad().defined()) << "parameter " << i;
    if (!left[i].grad().defined()) continue;
    EXPECT_LE(distance(left[i].grad().to_dense(), right[i].grad().to_dense()), tolerance)
        << "gradient " << i;
  }
}

// The bits of the parameters are equal on all ranks.
inline void expect_equal_replicas(const torch::nn::Module& module,
                                  const ProcessGroup& group) {
  for (const auto& item : module.named_parameters()) {
    torch::Tensor root = item.value().detach().clone();
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, item.value())) << item.key();
  }
}

// Returns the text of what `body` throws; fails the test if it throws nothing.
template <class Exception = std::exception, class Body>
std::string thrown_text(Body&& body) {
  try {
    body();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

}  // namespace brigade::testing
