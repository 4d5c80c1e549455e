#include "hooks/low_rank/power_sgd_matrices.h"

#include <ATen/ATen.h>

#include <tuple>

#include "base/huge_pages.h"
#include "hooks/stream_use.h"

namespace brigade {
namespace {

// Does not copy if the group is one float gradient.
at::Tensor stack_matrices(const std::vector<at::Tensor>& gradients) {
  const at::Tensor& first = gradients.front();
  const at::ScalarType dtype = compute_dtype(first.scalar_type());
  return gradients.size() == 1 ? first.unsqueeze(0).to(dtype)
                               : at::stack(gradients).to(dtype);
}

}  // namespace

Packed pack(const std::vector<std::vector<int64_t>>& shapes,
            const at::TensorOptions& options) {
  Packed packed;
  int64_t total = 0;
  for (const auto& shape : shapes) total += c10::multiply_integers(shape);
  packed.flat = at::empty(total, options);
  int64_t begin = 0;
  for (const auto& shape : shapes) {
    const int64_t length = c10::multiply_integers(shape);
    packed.views.push_back(packed.flat.narrow(0, begin, length).view(shape));
    begin += length;
  }
  return packed;
}

bool PowerSGDMatrices::pays(int64_t rows, int64_t columns) const {
  const double compressed = static_cast<double>((rows + columns) * rank_of(rows, columns));
  return compressed * options_.min_compression_rate < static_cast<double>(rows * columns);
}

PowerSGDMatrices::Plan PowerSGDMatrices::plan(const Bucket& bucket) {
  Plan plan;
  // Matrices of one group must also send the same factor of a round.
  std::map<std::tuple<int64_t, int64_t, bool>, size_t> group_of;
  const std::vector<at::Tensor> gradients = bucket.gradients();
  for (size_t index = 0; index < gradients.size(); ++index) {
    const at::Tensor& gradient = gradients[index];
    const int64_t rows = gradient.dim() > 1 ? gradient.size(0) : 1;
    const int64_t columns = rows > 0 ? gradient.numel() / rows : 0;
    if (gradient.dim() < 2 || gradient.numel() == 0 || !pays(rows, columns)) {
      plan.leftovers.push_back(gradient);
      continue;
    }
    MatrixMemory& memory = memory_[bucket.names()[index]];
    auto [place, fresh] =
        group_of.try_emplace({rows, columns, memory.p.defined()}, plan.groups.size());
    if (fresh || !options_.batch_tensors_with_same_shape) {
      place->second = plan.groups.size();
      plan.groups.emplace_back();
    }
    MatrixGroup& group = plan.groups[place->second];
    group.gradients.push_back(gradient.view({rows, columns}));
    for (at::Tensor* kept :
         {&memory.error.sum, &memory.error.p, &memory.error.q, &memory.error.last,
          &memory.q, &memory.spare, &memory.p, &memory.spare_p, &memory.other_sum})
      use_here(*kept, gradient.device());
    group.memories.push_back(&memory);
  }
  for (MatrixGroup& group : plan.groups) {
    group.m = stack_matrices(group.gradients);
    group.kernels = low_rank::has_kernels(group.m, rank_of(group.rows(), group.columns()));
  }
  return plan;
}

low_rank::Residual* PowerSGDMatrices::error_of(MatrixMemory& memory,
                                               const at::Tensor& m) const {
  if (!options_.use_error_feedback) return nullptr;
  low_rank::Residual& error = memory.error;
  if (!error.sum.defined())
    error.sum = base::empty_in_huge_pages(m.sizes(), m.options()).zero_();
  if (std::exchange(memory.sum_committed, false)) {
    if (!memory.other_sum.defined())
      memory.other_sum = base::empty_in_huge_pages(error.sum.sizes(), error.sum.options());
    error.last = error.sum;
    std::swap(error.sum, memory.other_sum);
  }
  return &error;
}

low_rank::Matrices PowerSGDMatrices::matrices_of(const MatrixGroup& group) const {
  low_rank::Matrices matrices;
  for (size_t index = 0; index < group.memories.size(); ++index) {
    const at::Tensor m = group.m[static_cast<int64_t>(index)];
    matrices.push_back({m, {}, {}, error_of(*group.memories[index], m)});
  }
  set_products(group, matrices);
  return matrices;
}

low_rank::Matrices PowerSGDMatrices::matrices_of(const Plan& plan) const {
  low_rank::Matrices all;
  for (const MatrixGroup& group : plan.groups) {
    if (!group.kernels) continue;
    const low_rank::Matrices some = matrices_of(group);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void PowerSGDMatrices::set_products(const MatrixGroup& group,
                                    std::span<low_rank::Matrix> matrices) {
  for (size_t index = 0; index < matrices.size(); ++index) {
    matrices[index].p = group.p[static_cast<int64_t>(index)];
    matrices[index].q = group.q[static_cast<int64_t>(index)];
  }
}

void PowerSGDMatrices::set_products(const Plan& plan, low_rank::Matrices& matrices) {
  std::span<low_rank::Matrix> rest = matrices;
  for (const MatrixGroup& group : plan.groups) {
    if (!group.kernels) continue;
    set_products(group, rest.first(group.memories.size()));
    rest = rest.subspan(group.memories.size());
  }
}

void PowerSGDMatrices::add_errors(MatrixGroup& group) const {
  for (size_t index = 0; index < group.memories.size(); ++index) {
    const low_rank::Residual& error = group.memories[index]->error;
    if (error.sum.defined()) group.m[static_cast<int64_t>(index)].add_(error.value());
  }
}

void PowerSGDMatrices::write_back(MatrixGroup& group) {
  for (size_t index = 0; index < group.gradients.size(); ++index) {
    if (!group.gradients[index].is_alias_of(group.m))
      group.gradients[index].copy_(group.m[static_cast<int64_t>(index)]);
  }
}

HookState PowerSGDMatrices::state() const {
  HookState state;
  save_base(state);
  for (const auto& [name, memory] : memory_) {
    const auto save = [&state, &name = name](const char* kind, const at::Tensor& tensor) {
      if (tensor.defined()) state.tensors[kind + name] = tensor.clone();
    };
    if (memory.error.sum.defined()) save(kErrorPrefix, memory.error.value());
    save("q.", memory.q);
    save("spare.", memory.spare);
    save("p.", memory.p);
    save("spare_p.", memory.spare_p);
  }
  return state;
}

bool PowerSGDMatrices::commit() {
  commit_base();
  for (auto& [name, memory] : memory_) memory.sum_committed = memory.error.sum.defined();
  committed_memory_ = memory_;  // copies pointers only
  return true;
}

void PowerSGDMatrices::revert() {
  take_back_base();
  memory_ = committed_memory_;
}

void PowerSGDMatrices::load_state(const HookState& state) {
  load_base(state);
  memory_.clear();
  for (const auto& [key, tensor] : state.tensors) {
    const size_t dot = key.find('.');
    const std::string kind = key.substr(0, dot + 1), name = key.substr(dot + 1);
    if (kind == kErrorPrefix) memory_[name].error = {tensor.clone(), {}, {}};
    if (kind == "q.") memory_[name].q = tensor.clone();
    if (kind == "spare.") memory_[name].spare = tensor.clone();
    if (kind == "p.") memory_[name].p = tensor.clone();
    if (kind == "spare_p.") memory_[name].spare_p = tensor.clone();
  }
}

}  // namespace brigade
