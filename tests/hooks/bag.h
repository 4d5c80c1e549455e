// A model whose gradients are what the test says, and its training for a few steps.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks/registry.h"

namespace brigade::testing {

using Shapes = std::vector<std::vector<int64_t>>;

// One parameter for each shape. forward(c) = sum of p[i] * c[i], so the gradient of p[i] is
// c[i].
struct BagImpl : torch::nn::Module {
  BagImpl(const Shapes& shapes, at::ScalarType dtype) {
    for (size_t index = 0; index < shapes.size(); ++index) {
      parameters_in_order.push_back(
          register_parameter("p" + std::to_string(index), at::zeros(shapes[index], dtype)));
    }
  }
  at::Tensor forward(const std::vector<at::Tensor>& coefficients) {
    at::Tensor sum;
    for (size_t index = 0; index < coefficients.size(); ++index) {
      if (!coefficients[index].defined()) continue;  // unused
      at::Tensor term = (parameters_in_order[index] * coefficients[index]).sum();
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }
  std::vector<at::Tensor> parameters_in_order;
};

// Every parameter in a bucket of its own.
inline constexpr double kOneBucketEach = 1e-6;

// Deterministic, different for each rank, step and parameter: layers of very different
// scale.
// Kept, because tests ask for the same ones often: not to be written into.
inline at::Tensor coefficient(const std::vector<int64_t>& shape, at::ScalarType dtype,
                              int rank, int64_t step, size_t index) {
  static std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int, int64_t, size_t>,
                  at::Tensor>
      made;
  at::Tensor& kept = made[{shape, dtype, rank, step, index}];
  if (kept.defined()) return kept;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(rank * 1000003 + step * 1009 + static_cast<int64_t>(index)));
  const double scale = std::pow(10.0, -static_cast<double>(index % 4));
  kept = at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)) * scale;
  return kept = kept.to(dtype);
}

// The exact mean over the ranks, in float64.
inline at::Tensor exact_mean(const std::vector<int64_t>& shape, at::ScalarType dtype,
                             int ranks, int64_t step, size_t index) {
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) {
    sum += coefficient(shape, dtype, rank, step, index).to(at::kDouble);
  }
  return sum / ranks;
}

// A bag under DistributedDataParallel with a hook (empty spec: none), every parameter in a
// bucket of its own unless the options say otherwise.
struct Rig {
  Rig(ProcessGroup group, const std::string& spec, Shapes shapes,
      at::ScalarType dtype = at::kFloat,
      DdpOptions options = {.bucket_cap_mb = kOneBucketEach})
      : group(group),
        shapes(std::move(shapes)),
        dtype(dtype),
        bag(std::make_shared<BagImpl>(this->shapes, dtype)),
        ddp(bag, group, std::move(options)) {
    if (!spec.empty()) ddp->set_hook(make_hook(spec));
  }

  // What this rank's gradients are before they are reduced.
  std::vector<at::Tensor> inputs(int64_t step) const {
    std::vector<at::Tensor> list;
    for (size_t index = 0; index < shapes.size(); ++index)
      list.push_back(coefficient(shapes[index], dtype, group.rank(), step, index).clone());
    return list;
  }
  at::Tensor mean(int64_t step, size_t index) const {
    return exact_mean(shapes[index], dtype, group.size(), step, index);
  }

  // Of all gradients together, against the exact mean, in units of a rank's own gradients:
  // so neither a bucket shared by layers of different scale nor ranks that cancel out make
  // it large. Undefined gradients are left out.
  double error(const std::vector<at::Tensor>& gradients, int64_t step) const {
    double off = 0, size = 0;
    for (size_t index = 0; index < shapes.size(); ++index) {
      if (!gradients[index].defined()) continue;
      off += (gradients[index].to(at::kDouble) - mean(step, index))
                 .pow(2)
                 .sum()
                 .item<double>();
      for (int rank = 0; rank < group.size(); ++rank) {
        size += coefficient(shapes[index], dtype, rank, step, index)
                    .to(at::kDouble)
                    .pow(2)
                    .sum()
                    .item<double>();
      }
    }
    return std::sqrt(off / (size / group.size()));
  }

  // One step; gives the gradients after it.
  std::vector<at::Tensor> train(int64_t step) { return train_on(inputs(step)); }
  std::vector<at::Tensor> train_on(const std::vector<at::Tensor>& coefficients) {
    ddp->zero_grad();
    ddp->forward(coefficients).backward();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : bag->parameters_in_order) {
      gradients.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                     : at::Tensor());
    }
    return gradients;
  }

  ProcessGroup group;
  Shapes shapes;
  at::ScalarType dtype;
  std::shared_ptr<BagImpl> bag;
  DistributedDataParallel<BagImpl> ddp;
};

}  // namespace brigade::testing
