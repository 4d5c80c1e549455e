// A small network that records the types that it computed with.
#pragma once
#include "ddp/models.h"

namespace brigade::testing {

constexpr auto kLow = at::kBFloat16;

// Has trained layers, one without gradient, one that tests ignore, and a buffer.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl() {
    frozen->weight.requires_grad_(false);
    frozen->bias.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    input = x.scalar_type();
    trained = middle->weight.scalar_type();
    without_gradient = frozen->weight.scalar_type();
    ignored = extra->weight.scalar_type();
    buffer = shift.scalar_type();
    low_storages.clear();
    for (const auto& p : parameters())
      low_storages.emplace_back(p.storage().getWeakStorageImpl());
    if (fails) throw std::runtime_error("forward fails");
    auto h = torch::tanh(frozen(torch::tanh(first(x))));
    h = torch::tanh(middle(h)) + shift.to(h.scalar_type());
    return last(h) + extra(h.to(extra->weight.scalar_type()).detach()).to(h.scalar_type());
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 16));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(16, 16));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(16, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 3));
  torch::nn::Linear extra = register_module("extra", torch::nn::Linear(16, 3));
  torch::Tensor shift = register_buffer("shift", torch::full({16}, 0.3));
  bool fails = false;
  // The types in the last forward pass.
  at::ScalarType input, trained, without_gradient, ignored, buffer;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> low_storages;
};
TORCH_MODULE(Probe);

inline torch::Tensor float_batch(int step, int64_t rows) {
  return batch(step, rows).to(torch::kFloat);
}
inline torch::Tensor float_target(int step, int64_t rows) {
  return target(step, rows).to(torch::kFloat);
}
template <class Output>
torch::Tensor loss(const Output& output, const torch::Tensor& wanted) {
  return torch::mse_loss(output.to(torch::kFloat), wanted);
}

inline void expect_full_precision(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), torch::kFloat) << item.key();
    if (item.value().grad().defined()) {
      EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat) << item.key();
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().is_floating_point()) {
      EXPECT_EQ(item.value().scalar_type(), torch::kFloat) << item.key();
    }
  }
}

// Has gradients where the class has them.
template <class Holder>
Holder copy_of(const Holder& net) {
  torch::NoGradGuard no_grad;
  Holder copy;
  auto from = net->parameters();
  auto to = copy->parameters();
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  return copy;
}

// Gives one process the whole batch in `low`, and adds up in float the mean over the ranks'
// shares.
template <class Holder>
void backward_by_hand(Holder& net, const torch::Tensor& x, const torch::Tensor& y,
                      int ranks, at::ScalarType low) {
  Holder copy = copy_of(net);
  for (auto& item : copy->named_parameters()) {
    if (!item.key().starts_with("extra"))
      item.value().set_data(item.value().detach().to(low));
  }
  auto own = net->parameters();
  auto lowered = copy->parameters();
  for (int rank = 0; rank < ranks; ++rank) {
    for (auto& parameter : lowered) parameter.mutable_grad() = torch::Tensor();
    loss(copy->forward(x.chunk(ranks)[rank].to(low)), y.chunk(ranks)[rank]).backward();
    for (size_t i = 0; i < own.size(); ++i) {
      if (!lowered[i].grad().defined()) continue;
      auto part = lowered[i].grad().to(torch::kFloat) / ranks;
      auto& sum = own[i].mutable_grad();
      sum = sum.defined() ? sum + part : part;
    }
  }
}

// The gradients of all parameters that are averaged.
inline torch::Tensor flat_gradient(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parts;
  for (const auto& item : module.named_parameters()) {
    if (!item.key().starts_with("extra") && item.value().grad().defined())
      parts.push_back(item.value().grad().flatten());
  }
  return torch::cat(parts);
}

// One process adds up in halves what we add up in floats.
inline void expect_near_gradients(const torch::nn::Module& exact,
                                  const torch::nn::Module& found, double bound) {
  const auto all = found.named_parameters();
  for (const auto& item : exact.named_parameters()) {
    if (item.key().starts_with("extra")) continue;  // ignored
    const auto& wanted = item.value().grad();
    const auto& gradient = all[item.key()].grad();
    ASSERT_EQ(wanted.defined(), gradient.defined()) << item.key();
    if (!wanted.defined()) continue;
    EXPECT_LE((gradient - wanted).norm().item<double>(),
              bound * wanted.norm().item<double>())
        << item.key();
  }
}

inline void expect_equal_gradients_on_all_ranks(const torch::nn::Module& module,
                                                const ProcessGroup& group) {
  for (const auto& item : module.named_parameters()) {
    // The ignored layer's gradients differ between ranks.
    if (!item.value().grad().defined() || item.key().starts_with("extra")) continue;
    torch::Tensor root = item.value().grad().detach().clone();
    group.broadcast(root);
    EXPECT_TRUE(torch::equal(root, item.value().grad())) << item.key();
  }
}

}  // namespace brigade::testing
