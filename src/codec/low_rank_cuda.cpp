#include "codec/low_rank_cuda.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "brigade/error.h"
#include "codec/cuda_module.h"

namespace brigade::low_rank::cuda {
namespace {

constexpr const char* kWho = "PowerSGD's kernels";

// A kernel that accesses memory of another device would end the process.
void check_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device() == device) return;
  throw Error(std::string(kWho) + ": a tensor is on " + tensor.device().str() +
              ", expected " + device.str());
}
const float* read(const at::Tensor& tensor, c10::Device device) {
  check_device(tensor, device);
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
float* write(const at::Tensor& tensor, c10::Device device) {
  check_device(tensor, device);
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}
kernels::LowRankShape shape_of(const at::Tensor& m, const at::Tensor& thin) {
  return {static_cast<size_t>(m.size(-2)), static_cast<size_t>(m.size(-1)),
          static_cast<size_t>(thin.size(-1))};
}

// The number of partial sums over the rows: enough blocks of threads to fill a device, with
// enough rows each.
int parts_of(int64_t rows, int64_t columns) {
  constexpr int64_t kBlocks = 1024, kColumnsOfABlock = 128, kLeastRows = 16;
  const int64_t across = (columns + kColumnsOfABlock - 1) / kColumnsOfABlock;
  const int64_t most = std::max<int64_t>(1, rows / kLeastRows);
  return static_cast<int>(
      std::clamp<int64_t>(kBlocks / across, 1, std::min<int64_t>(most, 1024)));
}

kernels::LowRankMatrix pointers(const Matrix& matrix) {
  const Residual* residual = matrix.residual;
  const c10::Device device = matrix.m.device();
  return {.m = write(matrix.m, device),
          .sum = residual ? write(residual->sum, device) : nullptr,
          .last_p = residual ? read(residual->p, device) : nullptr,
          .last_q = residual ? read(residual->q, device) : nullptr,
          .p = write(matrix.p, device),
          .q = write(matrix.q, device)};
}

// The indices of matrices with one shape, which one launch can take.
using Places = std::vector<size_t>;
std::vector<Places> by_shape(const Matrices& matrices) {
  std::map<std::tuple<int64_t, int64_t, int64_t>, Places> found;
  for (size_t place = 0; place < matrices.size(); ++place) {
    const Matrix& each = matrices[place];
    found[{each.m.size(0), each.m.size(1), each.p.size(1)}].push_back(place);
  }
  std::vector<Places> sets;
  for (auto& [shape, places] : found) sets.push_back(std::move(places));
  return sets;
}

// Calls body(first matrix, its shape, pointers of all) for each shape.
template <class Body>
void for_shapes(const Matrices& matrices, Body body) {
  for (const Places& places : by_shape(matrices)) {
    std::vector<kernels::LowRankMatrix> some;
    for (const size_t place : places) some.push_back(pointers(matrices[place]));
    const Matrix& first = matrices[places.front()];
    body(first, shape_of(first.m, first.p), some);
  }
}

}  // namespace

bool has(const at::Tensor& m, int64_t rank) {
  return m.is_cuda() && m.scalar_type() == at::kFloat && m.is_contiguous() && rank >= 1 &&
         rank <= static_cast<int64_t>(kernels::kMostRank) && cuda_kernels(m.device());
}

void project(const Matrices& matrices) {
  for (const Matrix& each : matrices) {
    if (!each.residual || !each.residual->last.defined()) continue;
    each.residual->sum.copy_(each.residual->last);
    each.residual->last.reset();
  }
  for_shapes(matrices, [](const Matrix& first, auto shape, const auto& some) {
    on_cuda(kWho, first.m, [&](const OnCuda& on) {
      return on.kernels.low_rank_project(shape, some.data(), static_cast<int>(some.size()),
                                         on.stream);
    });
  });
}

void project_back(const Matrices& matrices) {
  for_shapes(matrices, [](const Matrix& first, auto shape, const auto& some) {
    const auto count = static_cast<int>(some.size());
    const int parts = parts_of(first.m.size(0), first.m.size(1));
    const at::Tensor partial =
        parts > 1 ? at::empty({int64_t{count} * parts * first.q.numel()}, first.q.options())
                  : at::Tensor();
    on_cuda(kWho, first.m, [&](const OnCuda& on) {
      return on.kernels.low_rank_project_back(shape, some.data(), count, parts,
                                              write(partial, on.device), on.stream);
    });
  });
}

void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q) {
  const kernels::LowRankMatrix matrix = pointers({m, p, q});
  on_cuda(kWho, m, [&](const OnCuda& on) {
    return on.kernels.low_rank_rebuild(shape_of(m, p), &matrix, 1, nullptr, on.stream);
  });
}

namespace {

// The stored data of all matrices of one shape, contiguous.
struct Kept {
  at::Tensor p;
  at::Tensor q;
  at::Tensor starts;
};

kernels::LowRankSettling pointers(const Ending& ending, const Kept& kept, int64_t index,
                                  bool feeds_back) {
  const c10::Device device = kept.p.device();
  return {.check = read(ending.check, device),
          .check_size = static_cast<size_t>(ending.check.numel()),
          .p = read(ending.p, device),
          .q = read(ending.q, device),
          .kept_p = feeds_back ? write(kept.p[index], device) : nullptr,
          .kept_q = feeds_back ? write(kept.q[index], device) : nullptr,
          .next = ending.start ? write(kept.starts[index], device) : nullptr,
          .last = ending.start ? read(*ending.start, device) : nullptr};
}

}  // namespace

void finish(const Matrices& matrices, const std::vector<Ending>& endings) {
  for (const Places& places : by_shape(matrices)) {
    const auto count = static_cast<int64_t>(places.size());
    const Matrix& first = matrices[places.front()];
    const auto options = first.p.options();
    const int64_t rank = first.p.size(1);
    const Kept kept{at::empty({count, first.m.size(0), rank}, options),
                    at::empty({count, first.m.size(1), rank}, options),
                    at::empty({count, first.m.size(1), rank}, options)};
    const at::Tensor lost = at::empty({count}, options);
    std::vector<kernels::LowRankMatrix> some;
    std::vector<kernels::LowRankSettling> settling;
    for (int64_t index = 0; index < count; ++index) {
      const size_t place = places[static_cast<size_t>(index)];
      const Matrix& each = matrices[place];
      some.push_back(pointers(each));
      settling.push_back(pointers(endings[place], kept, index, each.residual != nullptr));
    }
    on_cuda(kWho, first.m, [&](const OnCuda& on) {
      const auto shape = shape_of(first.m, first.p);
      const int error =
          on.kernels.low_rank_settle(shape, settling.data(), static_cast<int>(count),
                                     write(lost, on.device), on.stream);
      return error
                 ? error
                 : on.kernels.low_rank_rebuild(shape, some.data(), static_cast<int>(count),
                                               read(lost, on.device), on.stream);
    });
    for (int64_t index = 0; index < count; ++index) {
      const size_t place = places[static_cast<size_t>(index)];
      if (Residual* residual = matrices[place].residual)
        residual->p = kept.p[index], residual->q = kept.q[index];
      if (endings[place].start) *endings[place].start = kept.starts[index];
    }
  }
}

void orthonormalize(const std::vector<Columns>& matrices, double epsilon) {
  std::map<std::pair<int64_t, int64_t>, std::vector<kernels::LowRankColumns>> sets;
  const c10::Device device = matrices.front().columns.device();
  for (const Columns& each : matrices)
    sets[{each.columns.size(0), each.columns.size(1)}].push_back(
        {write(each.columns, device), read(each.from, device), read(each.spare, device)});
  on_cuda(kWho, matrices.front().columns, [&](const OnCuda& on) {
    for (const auto& [shape, some] : sets) {
      const int error = on.kernels.low_rank_orthonormalize(
          static_cast<size_t>(shape.first), static_cast<size_t>(shape.second), some.data(),
          static_cast<int>(some.size()), epsilon, on.stream);
      if (error) return error;
    }
    return 0;
  });
}

}  // namespace brigade::low_rank::cuda
