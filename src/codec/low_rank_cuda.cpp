#include "codec/low_rank_cuda.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "codec/cuda_module.h"

namespace brigade::low_rank::cuda {
namespace {

constexpr const char* kWho = "PowerSGD's kernels";

const float* read(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
float* write(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}
kernels::LowRankShape shape_of(const at::Tensor& m, const at::Tensor& thin) {
  return {static_cast<size_t>(m.size(-2)), static_cast<size_t>(m.size(-1)),
          static_cast<size_t>(thin.size(-1))};
}

// In how many parts the rows are added up: enough blocks of threads to fill a device, and
// rows enough to be worth one.
int parts_of(int64_t rows, int64_t columns) {
  constexpr int64_t kBlocks = 1024, kColumnsOfABlock = 128, kLeastRows = 16;
  const int64_t across = (columns + kColumnsOfABlock - 1) / kColumnsOfABlock;
  const int64_t most = std::max<int64_t>(1, rows / kLeastRows);
  return static_cast<int>(
      std::clamp<int64_t>(kBlocks / across, 1, std::min<int64_t>(most, 1024)));
}

}  // namespace

bool has(const at::Tensor& m, int64_t rank) {
  return m.is_cuda() && m.scalar_type() == at::kFloat && m.is_contiguous() && rank >= 1 &&
         rank <= static_cast<int64_t>(kernels::kMostRank) && cuda_kernels();
}

void project(const at::Tensor& m, const Residual* residual, const at::Tensor& q,
             at::Tensor p) {
  on_cuda(kWho, m, [&](const OnCuda& on) {
    return on.kernels.low_rank_project(
        shape_of(m, p), read(m), residual ? write(residual->sum) : nullptr,
        residual ? read(residual->p) : nullptr, residual ? read(residual->q) : nullptr,
        read(q), write(p), on.stream);
  });
}

void project_back(const at::Tensor& m, const at::Tensor& p, at::Tensor q) {
  const int parts = parts_of(m.size(0), m.size(1));
  const at::Tensor partial =
      parts > 1 ? at::empty({parts * q.numel()}, q.options()) : at::Tensor();
  on_cuda(kWho, m, [&](const OnCuda& on) {
    return on.kernels.low_rank_project_back(shape_of(m, p), parts, read(m), read(p),
                                            write(partial), write(q), on.stream);
  });
}

void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q) {
  on_cuda(kWho, m, [&](const OnCuda& on) {
    return on.kernels.low_rank_rebuild(shape_of(m, p), write(m), read(p), read(q),
                                       on.stream);
  });
}

void orthonormalize(const at::Tensor& batch, double epsilon) {
  on_cuda(kWho, batch, [&](const OnCuda& on) {
    return on.kernels.low_rank_orthonormalize(
        static_cast<size_t>(batch.size(0)), static_cast<size_t>(batch.size(1)),
        static_cast<size_t>(batch.size(2)), write(batch), epsilon, on.stream);
  });
}

void take_back_if_lost(const at::Tensor& check, const at::Tensor& m, at::Tensor sum) {
  on_cuda(kWho, m, [&](const OnCuda& on) {
    return on.kernels.low_rank_take_back(read(check), read(m), write(sum),
                                         static_cast<size_t>(m.numel()), on.stream);
  });
}

}  // namespace brigade::low_rank::cuda
