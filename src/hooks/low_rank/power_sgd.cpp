// Takes two rounds: first the P's and the leftovers, then the Q's.
#include <ATen/ATen.h>

#include "codec/low_rank.h"
#include "hooks/low_rank/power_sgd_matrices.h"

namespace brigade {
namespace {

class PowerSGD : public PowerSGDMatrices {
 public:
  using PowerSGDMatrices::PowerSGDMatrices;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

 private:
  // Keeps the Q's of all groups as the start of the next P's.
  void set_starts(const Plan& plan);
  void project(Plan& plan, const low_rank::Matrices& matrices);
  void project_back(Plan& plan, const low_rank::Matrices& matrices);
  void rebuild(Plan& plan, const low_rank::Matrices& matrices);
  void rebuild_by_aten(MatrixGroup& group);
};

void PowerSGD::set_starts(const Plan& plan) {
  std::vector<low_rank::Columns> columns;
  for (const MatrixGroup& group : plan.groups) {
    for (size_t index = 0; index < group.memories.size(); ++index) {
      MatrixMemory& memory = *group.memories[index];
      if (!options_.warm_start || !memory.spare.defined())
        memory.spare = next_start({group.columns(), group.q.size(2)}, group.m.options());
      columns.push_back({group.q[static_cast<int64_t>(index)],
                         memory.q.defined() ? memory.q : memory.spare, memory.spare});
    }
  }
  orthogonalize(columns, options_.orthogonalization_epsilon);
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
  for (MatrixGroup& group : plan.groups) {
    const int64_t rank = rank_of(group.rows(), group.columns());
    p_shapes.push_back({group.batch(), group.rows(), rank});
    q_shapes.push_back({group.batch(), group.columns(), rank});
  }
  for (const at::Tensor& leftover : plan.leftovers) p_shapes.push_back({leftover.numel()});
  const Packed starts = pack(q_shapes, options);
  Packed first = pack(p_shapes, options), second = pack(q_shapes, options);
  count(bucket, bucket.buffer().numel(), first.flat.numel() + second.flat.numel());

  for (size_t index = 0; index < plan.groups.size(); ++index) {
    plan.groups[index].p = first.views[index];
    plan.groups[index].q = starts.views[index];
  }
  set_starts(plan);
  low_rank::Matrices matrices = matrices_of(plan);
  project(plan, matrices);
  for (size_t index = 0; index < plan.leftovers.size(); ++index) {
    first.views[plan.groups.size() + index].copy_(plan.leftovers[index].flatten());
  }
  first.flat.div_(comm.size());  // for the leftovers; the length of P does not matter
  co_await comm.all_reduce(first.flat);

  for (size_t index = 0; index < plan.groups.size(); ++index)
    plan.groups[index].q = second.views[index];
  set_products(plan, matrices);
  project_back(plan, matrices);
  second.flat.div_(comm.size());
  co_await comm.all_reduce(second.flat);

  rebuild(plan, matrices);
  for (size_t index = 0; index < plan.leftovers.size(); ++index) {
    const at::Tensor& mean = first.views[plan.groups.size() + index];
    plan.leftovers[index].copy_(mean.view(plan.leftovers[index].sizes()));
  }
  co_return bucket.buffer();
}

// One pass runs from the end, which the backward pass wrote last, and the next from the
// beginning, so each finds in the caches what the one before it left there.
void PowerSGD::project(Plan& plan, const low_rank::Matrices& matrices) {
  low_rank::project(matrices);
  for (MatrixGroup& group : plan.groups) {
    if (group.kernels) continue;
    add_errors(group);
    at::bmm_out(group.p, group.m, group.q);
  }
}

void PowerSGD::project_back(Plan& plan, const low_rank::Matrices& matrices) {
  std::vector<low_rank::Columns> columns;
  for (const low_rank::Matrix& matrix : matrices) columns.push_back({matrix.p});
  orthogonalize(columns, options_.orthogonalization_epsilon);
  low_rank::project_back(matrices);
  for (MatrixGroup& group : plan.groups) {
    if (group.kernels) continue;
    orthogonalize(group.p, options_.orthogonalization_epsilon);
    at::bmm_out(group.q, group.m.transpose(1, 2), group.p);
  }
}

void PowerSGD::rebuild(Plan& plan, const low_rank::Matrices& matrices) {
  std::vector<low_rank::Ending> endings;
  for (MatrixGroup& group : plan.groups) {
    for (size_t index = 0; group.kernels && index < group.memories.size(); ++index) {
      const low_rank::Matrix& matrix = matrices[endings.size()];
      at::Tensor* start = options_.warm_start ? &group.memories[index]->q : nullptr;
      endings.push_back({matrix.q, matrix.p, matrix.q, start});
    }
  }
  low_rank::finish(matrices, endings);
  for (MatrixGroup& group : plan.groups) {
    if (!group.kernels) rebuild_by_aten(group);
    write_back(group);
  }
}

void PowerSGD::rebuild_by_aten(MatrixGroup& group) {
  const at::Tensor rebuilt = at::bmm(group.p, group.q.transpose(1, 2));
  for (size_t index = 0; index < group.gradients.size(); ++index) {
    const int64_t place = static_cast<int64_t>(index);
    MatrixMemory& memory = *group.memories[index];
    const at::Tensor finite = at::isfinite(group.q[place].sum());
    if (options_.use_error_feedback) {
      memory.error = {
          keep(finite, group.m[place] - rebuilt[place], memory.error.sum), {}, {}};
    }
    if (options_.warm_start) memory.q = keep(finite, group.q[place].clone(), memory.q);
  }
  group.m.copy_(rebuilt);
}

}  // namespace

std::shared_ptr<PowerSGDHook> make_power_sgd(PowerSGDOptions options) {
  if (options.rounds == 1) return make_one_round_power_sgd(options);
  return std::make_shared<PowerSGD>(options);
}

}  // namespace brigade
