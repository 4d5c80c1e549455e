// Two rounds: the P's and the leftovers, then the Q's.
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
  at::Tensor stack_starts(const MatrixGroup& group, int64_t rank);
  void project(MatrixGroup& group);
  void project_back(MatrixGroup& group);
  void rebuild(MatrixGroup& group);
  void rebuild_by_kernels(MatrixGroup& group);
  void rebuild_by_aten(MatrixGroup& group);
};

at::Tensor PowerSGD::stack_starts(const MatrixGroup& group, int64_t rank) {
  std::vector<at::Tensor> starts;
  for (MatrixMemory* memory : group.memories) {
    if (!options_.warm_start || !memory->spare.defined()) {
      memory->spare = next_start({group.columns(), rank}, group.m.options());
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
  for (MatrixGroup& group : plan.groups) {
    const int64_t rank = rank_of(group.rows(), group.columns());
    group.q = stack_starts(group, rank);
    p_shapes.push_back({group.batch(), group.rows(), rank});
    q_shapes.push_back({group.batch(), group.columns(), rank});
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
    MatrixGroup& group = plan.groups[index];
    orthogonalize(group.p, options_.orthogonalization_epsilon);
    group.q = second.views[index];
    project_back(group);
  }
  second.flat.div_(comm.size());
  co_await comm.all_reduce(second.flat);

  for (MatrixGroup& group : plan.groups) {
    rebuild(group);
    write_back(group);
  }
  for (size_t index = 0; index < plan.leftovers.size(); ++index) {
    const at::Tensor& mean = first.views[plan.groups.size() + index];
    plan.leftovers[index].copy_(mean.view(plan.leftovers[index].sizes()));
  }
  co_return bucket.buffer();
}

void PowerSGD::project(MatrixGroup& group) {
  if (group.kernels) return low_rank::project(group.m, errors_of(group), group.q, group.p);
  add_errors(group);
  at::bmm_out(group.p, group.m, group.q);
}

void PowerSGD::project_back(MatrixGroup& group) {
  if (group.kernels) {
    return low_rank::project_back(group.m, errors_of(group), group.p, group.q);
  }
  at::bmm_out(group.q, group.m.transpose(1, 2), group.p);
}

void PowerSGD::rebuild(MatrixGroup& group) {
  group.kernels ? rebuild_by_kernels(group) : rebuild_by_aten(group);
}

void PowerSGD::rebuild_by_kernels(MatrixGroup& group) {
  for (size_t index = 0; index < group.gradients.size(); ++index) {
    const int64_t place = static_cast<int64_t>(index);
    MatrixMemory& memory = *group.memories[index];
    const at::Tensor q = group.q[place], check = q.sum();
    if (options_.use_error_feedback)
      low_rank::settle(memory.error, group.m[place], group.p[place], q, check);
    if (options_.warm_start) memory.q = keep(at::isfinite(check), q.clone(), memory.q);
  }
  low_rank::rebuild(group.m, group.p, group.q);
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
