// PowerSGD's kernels on a GPU, against products in double.
#include "codec/low_rank.h"

#include <ATen/ATen.h>

#include "codec/cuda_module.h"
#include "cuda/on_gpu.h"

namespace brigade {
namespace {

using testing::kGpu;
using testing::run_alone_on_cuda;

struct Size {
  int64_t batch, rows, columns, rank;
};
const Size kSizes[] = {{1, 1, 1, 1},      {1, 3, 5, 1},     {2, 31, 33, 2},
                       {1, 257, 129, 3},  {3, 64, 1000, 4}, {1, 1000, 64, 2},
                       {1, 4097, 513, 2}, {1, 16, 70000, 1}};

double distance(const at::Tensor& got, const at::Tensor& exact) {
  const double size = exact.norm().item<double>();
  return (got.to(at::kDouble) - exact).norm().item<double>() / std::max(size, 1e-30);
}

at::Tensor random(at::IntArrayRef shape) { return at::randn(shape, kGpu); }

low_rank::Matrices matrices(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q) {
  low_rank::Matrices all;
  for (int64_t index = 0; index < m.size(0); ++index)
    all.push_back({m[index], p[index], q[index]});
  return all;
}

std::vector<low_rank::Columns> columns(const at::Tensor& batch) {
  std::vector<low_rank::Columns> all;
  for (const at::Tensor& each : batch.unbind()) all.push_back({each});
  return all;
}

TEST(CudaLowRank, ProductsAreThoseInDouble) {
  run_alone_on_cuda([] {
    ASSERT_TRUE(cuda_kernels(kGpu)) << why_no_cuda_kernels(kGpu).value_or("");
    at::manual_seed(7);
    for (const auto& [batch, rows, columns, rank] : kSizes) {
      SCOPED_TRACE(c10::str(batch, " x ", rows, " x ", columns, ", rank ", rank));
      const at::Tensor m = random({batch, rows, columns});
      const at::Tensor q = random({batch, columns, rank});
      at::Tensor p = random({batch, rows, rank});
      ASSERT_TRUE(low_rank::has_kernels(m, rank));
      const at::Tensor exact_m = m.to(at::kDouble), exact_q = q.to(at::kDouble);

      low_rank::project(matrices(m, p, q));
      EXPECT_LE(distance(p, exact_m.bmm(exact_q)), 1e-6);

      at::Tensor back = at::empty_like(q), again = at::empty_like(q);
      low_rank::project_back(matrices(m, p, back));
      EXPECT_LE(distance(back, exact_m.transpose(1, 2).bmm(p.to(at::kDouble))), 1e-6);
      low_rank::project_back(matrices(m, p, again));
      EXPECT_TRUE(at::equal(back, again)) << "not the same bits twice";

      at::Tensor rebuilt = at::empty_like(m);
      for (int64_t index = 0; index < batch; ++index)
        low_rank::rebuild(rebuilt[index], p[index], back[index]);
      EXPECT_LE(
          distance(rebuilt, p.to(at::kDouble).bmm(back.to(at::kDouble).transpose(1, 2))),
          1e-6);

      // The error is fed back, less its last approximation, in the same pass.
      std::vector<low_rank::Residual> kept(static_cast<size_t>(batch));
      low_rank::Matrices fed_back = matrices(m, p, q);
      at::Tensor owed = at::zeros_like(exact_m);
      for (int64_t index = 0; index < batch; ++index) {
        auto& each = kept[static_cast<size_t>(index)];
        each = {random({rows, columns}), random({rows, rank}), random({columns, rank})};
        owed[index] = each.sum.to(at::kDouble) -
                      each.p.to(at::kDouble).mm(each.q.to(at::kDouble).t());
        EXPECT_LE(distance(each.value(), owed[index]), 1e-6);
        fed_back[static_cast<size_t>(index)].residual = &each;
      }
      low_rank::project(fed_back);
      EXPECT_LE(distance(p, (exact_m + owed).bmm(exact_q)), 1e-5);
      for (int64_t index = 0; index < batch; ++index) {
        EXPECT_LE(
            distance(kept[static_cast<size_t>(index)].sum, exact_m[index] + owed[index]),
            1e-6);
      }
    }
  });
}

TEST(CudaLowRank, ColumnsBecomeOrthonormal) {
  run_alone_on_cuda([] {
    at::manual_seed(8);
    for (const int64_t rank : {1, 2, 3, 4}) {
      for (const int64_t rows : {4, 513, 20000}) {
        at::Tensor batch = random({3, rows, rank});
        ASSERT_TRUE(low_rank::orthonormalize(columns(batch), 0));
        const at::Tensor exact = batch.to(at::kDouble);
        const at::Tensor product = exact.transpose(1, 2).bmm(exact);
        EXPECT_LE((product - at::eye(rank, product.options())).abs().max().item<double>(),
                  1e-5)
            << rows << " x " << rank;
      }
    }
    // A column that depends on others, or is zero, becomes zero; one with NaN becomes NaN.
    at::Tensor batch = random({1, 100, 3});
    batch.select(2, 1).copy_(batch.select(2, 0) * 3);
    batch.select(2, 2).zero_();
    ASSERT_TRUE(low_rank::orthonormalize(columns(batch), 1e-8));
    EXPECT_EQ(batch.narrow(2, 1, 2).abs().max().item<float>(), 0);
    batch = random({1, 100, 1});
    batch[0][5][0] = NAN;
    ASSERT_TRUE(low_rank::orthonormalize(columns(batch), 0));
    EXPECT_TRUE(at::isnan(batch).all().item<bool>());
  });
}

// There are more matrices of each of two shapes than one launch takes.
TEST(CudaLowRank, AStepThatIsLostIsTakenBack) {
  run_alone_on_cuda([] {
    at::manual_seed(9);
    constexpr size_t kMany = 150;
    std::vector<low_rank::Residual> residuals(kMany);
    std::vector<at::Tensor> starts(kMany), before, m_before;
    low_rank::Matrices all;
    std::vector<low_rank::Ending> endings;
    for (size_t index = 0; index < kMany; ++index) {
      const int64_t rows = 40, columns = index % 3 == 0 ? 30 : 33;
      residuals[index].sum = random({rows, columns});
      starts[index] = index % 5 == 0 ? at::Tensor() : random({columns, 2});
      before.push_back(residuals[index].sum.clone());
      all.push_back({random({rows, columns}), random({rows, 2}), random({columns, 2}),
                     &residuals[index]});
      m_before.push_back(all.back().m.clone());
    }
    low_rank::project(all);
    const auto old_starts = starts;
    for (size_t index = 0; index < kMany; ++index) {
      at::Tensor check = all[index].q.clone();
      if (index % 2) check[3][1] = index % 4 == 1 ? NAN : HUGE_VAL;
      endings.push_back({check, all[index].p, all[index].q, &starts[index]});
    }
    low_rank::finish(all, endings);
    for (size_t index = 0; index < kMany; ++index) {
      SCOPED_TRACE(index);
      const bool lost = index % 2;
      const at::Tensor product =
          all[index].p.to(at::kDouble).mm(all[index].q.to(at::kDouble).t());
      const at::Tensor sum = (before[index] + m_before[index]).to(at::kDouble);
      EXPECT_LE(distance(residuals[index].value(),
                         lost ? before[index].to(at::kDouble) : sum - product),
                1e-5);
      EXPECT_LE(distance(all[index].m, product), 1e-6);
      const at::Tensor old =
          old_starts[index].defined() ? old_starts[index] : at::zeros_like(all[index].q);
      EXPECT_TRUE(at::equal(starts[index], lost ? old : all[index].q));
    }
  });
}

TEST(CudaLowRank, ColumnsOfZerosAreReplacedByTheSpare) {
  run_alone_on_cuda([] {
    at::manual_seed(10);
    std::vector<low_rank::Columns> all;
    std::vector<at::Tensor> expected;
    for (int64_t index = 0; index < 300; ++index) {
      at::Tensor from = random({index % 2 ? 70 : 9, 3});
      const at::Tensor spare = at::randn_like(from);
      if (index % 3 == 0) from.select(1, 1).zero_();
      expected.push_back(from.clone());
      if (index % 3 == 0) expected.back().select(1, 1).copy_(spare.select(1, 1));
      all.push_back({at::empty_like(from), from, spare});
    }
    ASSERT_TRUE(low_rank::orthonormalize(all, 0));
    for (size_t index = 0; index < all.size(); ++index) {
      ASSERT_TRUE(low_rank::orthonormalize({{expected[index]}}, 0));
      EXPECT_TRUE(at::equal(all[index].columns, expected[index])) << index;
    }
  });
}

TEST(CudaLowRank, MemoryOfAnotherDeviceIsRefused) {
  run_alone_on_cuda([] {
    const at::Tensor m = random({8, 8}), p = random({8, 2}), q = random({8, 2});
    low_rank::Residual on_host{at::zeros({8, 8}), {}, {}};
    EXPECT_THROW(low_rank::project({{m, p, q, &on_host}}), Error);
    EXPECT_THROW(low_rank::rebuild(m, p.cpu(), q), Error);
  });
}

}  // namespace
}  // namespace brigade
