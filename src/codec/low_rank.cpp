#include "codec/low_rank.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "codec/low_rank_cuda.h"
#include "kernels/low_rank.h"

namespace brigade::low_rank {
namespace {

// Fewer elements take less time than waking up a thread.
constexpr int64_t kElementsOfAThread = 1 << 16;
// This many columns of a few rows, and of Q, stay in a core's nearest cache. In such blocks
// the second product of 2560 x 2560 values with rank 2 takes half as long.
constexpr int64_t kColumnsAtOnce = 1024;

bool fits(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

kernels::LowRankShape shape_of(const at::Tensor& m, const at::Tensor& thin) {
  return {static_cast<size_t>(m.size(-2)), static_cast<size_t>(m.size(-1)),
          static_cast<size_t>(thin.size(-1))};
}
float* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}
at::Tensor turned(const at::Tensor& q) { return q.defined() ? q.t().contiguous() : q; }

// Calls body(shape of a part, first row, offset of that row in M) for ranges of rows.
template <class Body>
void for_rows(kernels::LowRankShape shape, Body body) {
  const auto rows = static_cast<int64_t>(shape.rows);
  const auto columns = static_cast<int64_t>(shape.columns);
  at::parallel_for(0, rows, std::max<int64_t>(1, kElementsOfAThread / columns),
                   [&](int64_t begin, int64_t end) {
                     kernels::LowRankShape part = shape;
                     part.rows = static_cast<size_t>(end - begin);
                     body(part, begin, begin * columns);
                   });
}

// This many values stay in a core's nearest cache while they are moved.
constexpr int64_t kBroughtAtOnce = 2048;

void project_one(const at::Tensor& m, Residual* residual, const at::Tensor& q,
                 at::Tensor p) {
  const at::Tensor qt = turned(q);
  const at::Tensor last_qt = residual ? turned(residual->q) : at::Tensor();
  const float *from = data_of(m), *last_p = residual ? data_of(residual->p) : nullptr;
  const float* last_sum = residual && residual->last.defined()
                              ? residual->last.const_data_ptr<float>()
                              : nullptr;
  float *sum = residual ? data_of(residual->sum) : nullptr, *to = data_of(p);
  const int64_t rank = p.size(1);
  const auto& kernels = kernels::low_rank_kernels();
  for_rows(shape_of(m, p), [&](auto part, int64_t row, int64_t at) {
    if (sum == nullptr)
      return kernels.project(part, from + at, data_of(qt), to + row * rank);
    const auto feed_back = [&](auto some, int64_t first, int64_t begin) {
      kernels.feed_back(some, from + begin, sum + begin,
                        last_p ? last_p + first * rank : nullptr, data_of(last_qt),
                        data_of(qt), to + first * rank);
    };
    if (last_sum == nullptr) return feed_back(part, row, at);
    const auto columns = static_cast<int64_t>(part.columns);
    const auto end = row + static_cast<int64_t>(part.rows);
    const int64_t step = std::max<int64_t>(1, kBroughtAtOnce / columns);
    for (int64_t first = row; first < end; first += step) {
      const int64_t begin = at + (first - row) * columns;
      part.rows = static_cast<size_t>(std::min(step, end - first));
      std::copy_n(last_sum + begin, part.rows * part.columns, sum + begin);
      feed_back(part, first, begin);
    }
  });
}

void project_back_one(const at::Tensor& m, const at::Tensor& p, at::Tensor q) {
  const auto shape = shape_of(m, p);
  // One row and its transpose have the same order in memory.
  at::Tensor qt = q.size(1) == 1 ? q : at::empty({q.size(1), q.size(0)}, q.options());
  const float* from = data_of(m);
  float* to = data_of(qt);
  const int64_t grain =
      std::max<int64_t>(64, kElementsOfAThread / static_cast<int64_t>(shape.rows));
  at::parallel_for(0, m.size(1), grain, [&](int64_t begin, int64_t end) {
    auto part = shape;
    for (int64_t at = begin; at < end; at += kColumnsAtOnce) {
      part.columns = static_cast<size_t>(std::min(kColumnsAtOnce, end - at));
      kernels::low_rank_kernels().project_back(part, shape.columns, from + at, data_of(p),
                                               to + at);
    }
  });
  if (q.size(1) > 1) q.copy_(qt.t());
}

// Undoes what project() did. Values that are not finite become zero.
void revert(Residual& residual, const at::Tensor& m) {
  residual.sum.sub_(m).nan_to_num_(0, 0, 0);
}

void finish_one(const Matrix& matrix, const Ending& ending) {
  const bool lost = !at::isfinite(ending.check.sum()).item<bool>();
  at::Tensor q = lost ? at::Tensor() : ending.q.clone();
  if (matrix.residual && lost) revert(*matrix.residual, matrix.m);
  if (matrix.residual && !lost)
    matrix.residual->p = ending.p.clone(), matrix.residual->q = q;
  if (ending.start && !lost) *ending.start = q;
  rebuild(matrix.m, matrix.p, matrix.q);
}

bool are_on_cuda(const Matrices& matrices) {
  return !matrices.empty() && matrices.front().m.is_cuda();
}

}  // namespace

at::Tensor Residual::value() const {
  if (!p.defined()) return sum;
  const at::Tensor product = at::empty_like(sum);
  rebuild(product, p, q);
  return sum - product;
}

bool has_kernels(const at::Tensor& m, int64_t rank) {
  if (m.is_cuda()) return cuda::has(m, rank);
  return fits(m) && rank >= 1 && rank <= static_cast<int64_t>(kernels::kMostRank);
}

void project(const Matrices& matrices) {
  if (are_on_cuda(matrices)) {
    cuda::project(matrices);
  } else {
    for (size_t index = matrices.size(); index-- > 0;) {
      const Matrix& each = matrices[index];
      project_one(each.m, each.residual, each.q, each.p);
    }
  }
  for (const Matrix& each : matrices)
    if (Residual* residual = each.residual)
      residual->p = residual->q = residual->last = at::Tensor();
}

void add(const Matrices& matrices) {
  for (const Matrix& each : matrices) {
    if (!each.residual) continue;
    Residual& residual = *each.residual;
    if (each.m.is_cuda()) {
      if (residual.last.defined()) residual.sum = residual.last;
      residual = {residual.value().add(each.m), {}, {}};
      continue;
    }
    // The product costs nothing compared with reading and writing the memory.
    const int64_t rank = each.p.size(1);
    project({{each.m, at::empty({each.m.size(0), rank}, each.m.options()),
              at::zeros({each.m.size(1), rank}, each.m.options()), &residual}});
  }
}

void project_back(const Matrices& matrices) {
  if (are_on_cuda(matrices)) return cuda::project_back(matrices);
  for (const Matrix& each : matrices)
    project_back_one(each.residual ? each.residual->sum : each.m, each.p, each.q);
}

void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q) {
  if (m.is_cuda()) return cuda::rebuild(m, p, q);
  const at::Tensor qt = turned(q);
  const float* from = data_of(p);
  float* to = data_of(m);
  for_rows(shape_of(m, p), [&](auto part, int64_t row, int64_t at) {
    kernels::low_rank_kernels().rebuild(part, to + at, from + row * p.size(1), data_of(qt));
  });
}

void finish(const Matrices& matrices, const std::vector<Ending>& endings) {
  if (are_on_cuda(matrices)) return cuda::finish(matrices, endings);
  for (size_t index = 0; index < matrices.size(); ++index)
    finish_one(matrices[index], endings[index]);
}

bool orthonormalize(const std::vector<Columns>& matrices, double epsilon) {
  const auto on_device = [](const Columns& each) {
    return cuda::has(each.columns, each.columns.size(1));
  };
  if (!matrices.empty() && std::ranges::all_of(matrices, on_device)) {
    cuda::orthonormalize(matrices, epsilon);
    return true;
  }
  const auto on_host = [](const Columns& each) {
    return fits(each.columns) && each.columns.size(1) <= 2 && !each.from.defined();
  };
  if (!std::ranges::all_of(matrices, on_host)) return false;
  for (const Columns& each : matrices) {
    kernels::orthonormalize(static_cast<size_t>(each.columns.size(0)),
                            static_cast<size_t>(each.columns.size(1)),
                            data_of(each.columns), epsilon);
  }
  return true;
}

}  // namespace brigade::low_rank
