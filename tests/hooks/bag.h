// A model with gradients that a test chooses, and its training for a few steps.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "hooks/low_rank/power_sgd_core.h"

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

// Puts every parameter in its own bucket.
inline constexpr double kOneBucketEach = 1e-6;

// The gradients that a test wants. Low ranks stay low in sums over ranks and steps, and no
// value of such gradients is rounded in any dtype.
enum class Structure {
  any,       // of full rank
  matrix,    // each parameter is a matrix of low rank: its first dimension, and the rest
  square,    // the same for the matrix that the batched PowerSGD makes of the parameter
  constant,  // all values are equal: rank 2 at most in any padded square
};
struct Gradients {
  Structure structure = Structure::any;
  int64_t low_rank = 0;  // for matrix and square
};

inline at::Generator generator_of(int rank, int64_t step, size_t index) {
  return at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(rank * 1000003 + step * 1009 + static_cast<int64_t>(index)));
}

// The first elements of a product of two thin matrices of small whole numbers, with zeros
// in incomplete rows. The right matrix is the same for all ranks and steps.
inline at::Tensor low_rank_values(const std::vector<int64_t>& shape, Gradients kind,
                                  int rank, int64_t step, size_t index) {
  const int64_t elements = c10::multiply_integers(shape);
  if (kind.structure == Structure::constant || elements == 0)
    return at::full(shape, static_cast<double>(3 * (rank + 1) + step), at::kDouble);
  int64_t rows = shape.front(), columns = elements / rows;
  if (kind.structure == Structure::square) {
    columns = nearly_square_columns(elements, shape.size() > 1 ? columns : 0);
    rows = (elements + columns - 1) / columns;
  }
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor left =
      at::randint(-3, 4, {rows, kind.low_rank}, generator_of(rank, step, index), options);
  const at::Tensor right =
      at::randint(-2, 3, {kind.low_rank, columns}, generator_of(0, 7777, index), options);
  left.narrow(0, elements / columns, rows - elements / columns).zero_();
  const double scale = std::ldexp(1.0, -3 * static_cast<int>(index % 4));
  return (left.mm(right) * scale).view({-1}).narrow(0, 0, elements).view(shape);
}

// Deterministic, and different for each rank, step and parameter. Layers have very
// different scales. The tensors are kept, because tests ask for the same ones often, and
// must not be written into.
inline at::Tensor coefficient(const std::vector<int64_t>& shape, at::ScalarType dtype,
                              int rank, int64_t step, size_t index, Gradients kind = {}) {
  static std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int, int64_t, size_t,
                             Structure, int64_t>,
                  at::Tensor>
      made;
  at::Tensor& kept = made[{shape, dtype, rank, step, index, kind.structure, kind.low_rank}];
  if (kept.defined()) return kept;
  if (kind.structure != Structure::any)
    return kept = low_rank_values(shape, kind, rank, step, index).to(dtype);
  const double scale = std::pow(10.0, -static_cast<double>(index % 4));
  const at::Tensor values = at::randn(shape, generator_of(rank, step, index),
                                      at::TensorOptions().dtype(at::kDouble));
  return kept = (values * scale).to(dtype);
}

// The exact mean over the ranks, and the mean of their sums of squares, in float64.
struct OverRanks {
  at::Tensor mean;
  double squares = 0;
};

// Results are kept as the coefficients are, and must not be written into.
inline const OverRanks& over_ranks(const std::vector<int64_t>& shape, at::ScalarType dtype,
                                   int ranks, int64_t step, size_t index, Gradients kind) {
  static std::map<std::tuple<std::vector<int64_t>, at::ScalarType, int, int64_t, size_t,
                             Structure, int64_t>,
                  OverRanks>
      made;
  OverRanks& kept = made[{shape, dtype, ranks, step, index, kind.structure, kind.low_rank}];
  if (kept.mean.defined()) return kept;
  at::Tensor sum = at::zeros(shape, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor values =
        coefficient(shape, dtype, rank, step, index, kind).to(at::kDouble);
    sum += values;
    kept.squares += values.pow(2).sum().item<double>() / ranks;
  }
  kept.mean = sum / ranks;
  return kept;
}

inline at::Tensor exact_mean(const std::vector<int64_t>& shape, at::ScalarType dtype,
                             int ranks, int64_t step, size_t index, Gradients kind = {}) {
  return over_ranks(shape, dtype, ranks, step, index, kind).mean;
}

// A bag under DistributedDataParallel with a hook (none if `spec` is empty). Every
// parameter has its own bucket unless the options say otherwise.
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

  // This rank's gradients before they are reduced.
  std::vector<at::Tensor> inputs(int64_t step) const {
    std::vector<at::Tensor> list;
    for (size_t index = 0; index < shapes.size(); ++index)
      list.push_back(
          coefficient(shapes[index], dtype, group.rank(), step, index, kind).clone());
    return list;
  }
  at::Tensor mean(int64_t step, size_t index) const {
    return exact_mean(shapes[index], dtype, group.size(), step, index, kind);
  }

  // The error of all gradients together, against the exact mean, in units of a rank's own
  // gradients, so that neither a bucket shared by layers of different scale nor ranks that
  // cancel out make it large. Leaves undefined gradients out.
  double error(const std::vector<at::Tensor>& gradients, int64_t step) const {
    double off = 0, size = 0;
    for (size_t index = 0; index < shapes.size(); ++index) {
      if (!gradients[index].defined()) continue;
      const OverRanks& exact =
          over_ranks(shapes[index], dtype, group.size(), step, index, kind);
      off += (gradients[index].to(at::kDouble) - exact.mean).pow(2).sum().item<double>();
      size += exact.squares;
    }
    return std::sqrt(off / size);
  }

  // Takes one step; returns the gradients after it.
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
  Gradients kind;  // the inputs
  std::shared_ptr<BagImpl> bag;
  DistributedDataParallel<BagImpl> ddp;
};

// Every rank's own tensors, on all ranks, computed by sums.
inline std::vector<HookState> gather_states(const ProcessGroup& group,
                                            const HookState& mine) {
  std::vector<HookState> all(group.size(), mine);
  for (auto& [key, tensor] : mine.tensors) {
    at::Tensor stacked = at::zeros({group.size(), tensor.numel()}, at::kDouble);
    stacked[group.rank()].copy_(tensor.flatten());
    group.all_reduce(stacked);
    for (int rank = 0; rank < group.size(); ++rank) {
      all[rank].tensors[key] = stacked[rank].view(tensor.sizes()).to(tensor.scalar_type());
    }
  }
  return all;
}

}  // namespace brigade::testing
