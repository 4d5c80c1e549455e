// Vocabulary. A *matrix* is a gradient of two or more dimensions, seen as its first
// dimension by the rest. A *group* is one matrix or, with batching, all matrices of one
// shape: M (b, rows, columns), P (b, rows, r), Q (b, columns, r), M ≈ P Qᵀ.
// *Leftovers* are the gradients that go uncompressed.
#include <ATen/ATen.h>

#include "base/huge_pages.h"
#include "codec/low_rank.h"
#include "hooks/power_sgd_core.h"
#include "hooks/stream_use.h"

namespace brigade {
namespace {

// What is kept of one parameter.
struct Memory {
  low_rank::Residual error;
  at::Tensor q;      // (columns, r): the last step's
  at::Tensor spare;  // the first q: replaces columns of q that became zero
};

struct Group {
  std::vector<at::Tensor> gradients;
  std::vector<Memory*> memories;
  at::Tensor m;
  at::Tensor p;
  at::Tensor q;
  // The kernels leave M alone until it is rebuilt, and add M to the stored errors. ATen's
  // operations add the errors to M.
  bool kernels = false;
};

struct Plan {
  std::vector<Group> groups;
  std::vector<at::Tensor> leftovers;
};

class PowerSGD : public PowerSGDBase {
 public:
  explicit PowerSGD(PowerSGDOptions options) : PowerSGDBase("powersgd", options) {}

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;
  HookState state() const override;
  void load_state(const HookState& state) override;
  void reset() override {
    reset_base();
    memory_.clear();
  }

 private:
  Plan plan(const Bucket& bucket);
  bool pays(int64_t rows, int64_t columns) const;
  int64_t rank_of(int64_t rows, int64_t columns) const {
    return std::min({rows, columns, options_.matrix_approximation_rank});
  }
  at::Tensor stack_matrices(const Group& group);
  at::Tensor stack_starts(const Group& group, int64_t columns, int64_t rank);
  low_rank::Residuals errors_of(const Group& group) const;
  void project(Group& group);
  void project_back(Group& group);
  void write_back(Group& group);
  void rebuild_by_kernels(Group& group);
  void rebuild_by_aten(Group& group);

  std::map<std::string, Memory> memory_;
};

// One flat tensor that holds the given shapes one after the other, and views of them.
struct Packed {
  at::Tensor flat;
  std::vector<at::Tensor> views;
};
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

bool PowerSGD::pays(int64_t rows, int64_t columns) const {
  const double compressed = static_cast<double>((rows + columns) * rank_of(rows, columns));
  return compressed * options_.min_compression_rate < static_cast<double>(rows * columns);
}

Plan PowerSGD::plan(const Bucket& bucket) {
  Plan plan;
  std::map<std::pair<int64_t, int64_t>, size_t> group_of;
  const std::vector<at::Tensor> gradients = bucket.gradients();
  for (size_t index = 0; index < gradients.size(); ++index) {
    const at::Tensor& gradient = gradients[index];
    const int64_t rows = gradient.dim() > 1 ? gradient.size(0) : 1;
    const int64_t columns = rows > 0 ? gradient.numel() / rows : 0;
    if (gradient.dim() < 2 || gradient.numel() == 0 || !pays(rows, columns)) {
      plan.leftovers.push_back(gradient);
      continue;
    }
    auto [place, fresh] = group_of.try_emplace({rows, columns}, plan.groups.size());
    if (fresh || !options_.batch_tensors_with_same_shape) {
      place->second = plan.groups.size();
      plan.groups.emplace_back();
    }
    Group& group = plan.groups[place->second];
    group.gradients.push_back(gradient.view({rows, columns}));
    Memory& memory = memory_[bucket.names()[index]];
    for (const at::Tensor& kept : {memory.error.sum, memory.q, memory.spare})
      use_on_current_stream(kept);
    group.memories.push_back(&memory);
  }
  return plan;
}

// M. It is not a copy if the group is one float gradient.
at::Tensor PowerSGD::stack_matrices(const Group& group) {
  const at::Tensor& first = group.gradients.front();
  const at::ScalarType dtype = compute_dtype(first.scalar_type());
  return group.gradients.size() == 1 ? first.unsqueeze(0).to(dtype)
                                     : at::stack(group.gradients).to(dtype);
}

at::Tensor PowerSGD::stack_starts(const Group& group, int64_t columns, int64_t rank) {
  std::vector<at::Tensor> starts;
  for (Memory* memory : group.memories) {
    if (!options_.warm_start || !memory->spare.defined()) {
      memory->spare = next_start({columns, rank}, group.m.options());
    }
    starts.push_back(memory->q.defined() ? revive(memory->q, memory->spare)
                                         : memory->spare);
  }
  at::Tensor q = at::stack(starts);
  orthogonalize(q, options_.orthogonalization_epsilon);
  return q;
}

Task<at::Tensor> PowerSGD::reduce(Bucket bucket, Comm& comm) {
  if (!compresses(bucket)) {
    co_return co_await average(bucket, comm);
  }
  Plan plan = this->plan(bucket);
  const auto options =
      bucket.buffer().options().dtype(compute_dtype(bucket.buffer().scalar_type()));

  // The P's and the leftovers travel together.
  std::vector<std::vector<int64_t>> p_shapes, q_shapes;
  for (Group& group : plan.groups) {
    group.m = stack_matrices(group);
    const int64_t batch = group.m.size(0), rows = group.m.size(1),
                  columns = group.m.size(2);
    group.kernels = low_rank::has_kernels(group.m, rank_of(rows, columns));
    group.q = stack_starts(group, columns, rank_of(rows, columns));
    p_shapes.push_back({batch, rows, group.q.size(2)});
    q_shapes.push_back({batch, columns, group.q.size(2)});
  }
  for (const at::Tensor& leftover : plan.leftovers) p_shapes.push_back({leftover.numel()});
  Packed first = pack(p_shapes, options);
  Packed second = pack(q_shapes, options);
  count(bucket, bucket.buffer().numel(), first.flat.numel() + second.flat.numel());

  // One pass goes from the end, which the backward pass wrote last, and the next from the
  // beginning: each finds in the caches what the one before it left there.
  for (size_t index = plan.groups.size(); index-- > 0;) {
    plan.groups[index].p = first.views[index];
    project(plan.groups[index]);
  }
  for (size_t index = 0; index < plan.leftovers.size(); ++index) {
    first.views[plan.groups.size() + index].copy_(plan.leftovers[index].flatten());
  }
  first.flat.div_(comm.size());  // for the leftovers; P's length does not matter
  co_await comm.all_reduce(first.flat);

  for (size_t index = 0; index < plan.groups.size(); ++index) {
    Group& group = plan.groups[index];
    orthogonalize(group.p, options_.orthogonalization_epsilon);
    group.q = second.views[index];
    project_back(group);
  }
  second.flat.div_(comm.size());
  co_await comm.all_reduce(second.flat);

  for (Group& group : plan.groups) write_back(group);
  for (size_t index = 0; index < plan.leftovers.size(); ++index) {
    const at::Tensor& mean = first.views[plan.groups.size() + index];
    plan.leftovers[index].copy_(mean.view(plan.leftovers[index].sizes()));
  }
  co_return bucket.buffer();
}

low_rank::Residuals PowerSGD::errors_of(const Group& group) const {
  low_rank::Residuals errors;
  if (!options_.use_error_feedback) return errors;
  for (Memory* memory : group.memories) errors.push_back(&memory->error);
  return errors;
}

void PowerSGD::project(Group& group) {
  if (group.kernels) {
    const low_rank::Residuals errors = errors_of(group);
    for (low_rank::Residual* error : errors) {
      if (!error->sum.defined())
        error->sum =
            base::empty_in_huge_pages(group.m[0].sizes(), group.m.options()).zero_();
    }
    return low_rank::project(group.m, errors, group.q, group.p);
  }
  for (size_t index = 0; index < group.memories.size(); ++index) {
    const low_rank::Residual& error = group.memories[index]->error;
    if (error.sum.defined()) group.m[static_cast<int64_t>(index)].add_(error.value());
  }
  at::bmm_out(group.p, group.m, group.q);
}

void PowerSGD::project_back(Group& group) {
  if (group.kernels) {
    return low_rank::project_back(group.m, errors_of(group), group.p, group.q);
  }
  at::bmm_out(group.q, group.m.transpose(1, 2), group.p);
}

void PowerSGD::write_back(Group& group) {
  group.kernels ? rebuild_by_kernels(group) : rebuild_by_aten(group);
  for (size_t index = 0; index < group.gradients.size(); ++index) {
    if (!group.gradients[index].is_alias_of(group.m))
      group.gradients[index].copy_(group.m[static_cast<int64_t>(index)]);
  }
}

void PowerSGD::rebuild_by_kernels(Group& group) {
  for (size_t index = 0; index < group.gradients.size(); ++index) {
    const int64_t place = static_cast<int64_t>(index);
    Memory& memory = *group.memories[index];
    const at::Tensor q = group.q[place], check = q.sum();
    if (options_.use_error_feedback)
      low_rank::settle(memory.error, group.m[place], group.p[place], q, check);
    if (options_.warm_start) memory.q = keep(at::isfinite(check), q.clone(), memory.q);
  }
  low_rank::rebuild(group.m, group.p, group.q);
}

void PowerSGD::rebuild_by_aten(Group& group) {
  const at::Tensor rebuilt = at::bmm(group.p, group.q.transpose(1, 2));
  for (size_t index = 0; index < group.gradients.size(); ++index) {
    const int64_t place = static_cast<int64_t>(index);
    Memory& memory = *group.memories[index];
    const at::Tensor finite = at::isfinite(group.q[place].sum());
    if (options_.use_error_feedback) {
      memory.error = {
          keep(finite, group.m[place] - rebuilt[place], memory.error.sum), {}, {}};
    }
    if (options_.warm_start) memory.q = keep(finite, group.q[place].clone(), memory.q);
  }
  group.m.copy_(rebuilt);
}

HookState PowerSGD::state() const {
  HookState state;
  save_base(state);
  for (const auto& [name, memory] : memory_) {
    if (memory.error.sum.defined())
      state.tensors[kErrorPrefix + name] = memory.error.value().clone();
    if (memory.q.defined()) state.tensors["q." + name] = memory.q.clone();
    if (memory.spare.defined()) state.tensors["spare." + name] = memory.spare.clone();
  }
  return state;
}

void PowerSGD::load_state(const HookState& state) {
  load_base(state);
  memory_.clear();
  for (const auto& [key, tensor] : state.tensors) {
    const size_t dot = key.find('.');
    const std::string kind = key.substr(0, dot + 1), name = key.substr(dot + 1);
    if (kind == kErrorPrefix) memory_[name].error = {tensor.clone(), {}, {}};
    if (kind == "q.") memory_[name].q = tensor.clone();
    if (kind == "spare.") memory_[name].spare = tensor.clone();
  }
}

}  // namespace

std::shared_ptr<PowerSGDHook> make_power_sgd(PowerSGDOptions options) {
  return std::make_shared<PowerSGD>(options);
}

}  // namespace brigade
