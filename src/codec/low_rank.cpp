#include "codec/low_rank.h"

#include <ATen/ATen.h>

#include "kernels/low_rank.h"

namespace brigade::low_rank {
namespace {

bool fits(const at::Tensor& tensor) {
  return !tensor.defined() ||
         (tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous());
}
bool kernels_for(const at::Tensor& m, at::TensorList errors, const at::Tensor& thin) {
  return fits(m) && fits(thin) && thin.size(2) >= 1 &&
         thin.size(2) <= static_cast<int64_t>(kernels::kMostRank) &&
         std::all_of(errors.begin(), errors.end(), fits);
}

kernels::LowRankShape shape_of(const at::Tensor& m, const at::Tensor& thin) {
  return {static_cast<size_t>(m.size(1)), static_cast<size_t>(m.size(2)),
          static_cast<size_t>(thin.size(2))};
}
float* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

}  // namespace

void project(const at::Tensor& m, at::TensorList errors, const at::Tensor& q,
             at::Tensor p) {
  const bool kernels = kernels_for(m, errors, p);
  for (int64_t index = 0; index < m.size(0); ++index) {
    const at::Tensor& error = errors[index];
    if (kernels) {
      const at::Tensor turned = q[index].t().contiguous();
      kernels::low_rank_kernels().project(shape_of(m, p), data_of(m[index]), data_of(error),
                                          data_of(turned), data_of(p[index]));
    } else if (error.defined()) {
      m[index].add_(error);
    }
  }
  if (!kernels) at::bmm_out(p, m, q);
}

void project_back(const at::Tensor& m, const at::Tensor& p, at::Tensor q) {
  if (!kernels_for(m, {}, p)) {
    at::bmm_out(q, m.transpose(1, 2), p);
    return;
  }
  for (int64_t index = 0; index < m.size(0); ++index) {
    const at::Tensor turned = at::empty({q.size(2), q.size(1)}, q.options());
    kernels::low_rank_kernels().project_back(shape_of(m, p), data_of(m[index]),
                                             data_of(p[index]), data_of(turned));
    q[index].copy_(turned.t());
  }
}

void rebuild(const at::Tensor& m, at::TensorList errors, const at::Tensor& p,
             const at::Tensor& q) {
  if (!kernels_for(m, errors, p)) {
    const at::Tensor rebuilt = at::bmm(p, q.transpose(1, 2));
    for (int64_t index = 0; index < m.size(0); ++index) {
      at::Tensor error = errors[index];
      if (error.defined()) at::sub_out(error, m[index], rebuilt[index]);
    }
    m.copy_(rebuilt);
    return;
  }
  for (int64_t index = 0; index < m.size(0); ++index) {
    const at::Tensor turned = q[index].t().contiguous();
    kernels::low_rank_kernels().rebuild(shape_of(m, p), data_of(m[index]),
                                        data_of(errors[index]), data_of(p[index]),
                                        data_of(turned));
  }
}

}  // namespace brigade::low_rank
