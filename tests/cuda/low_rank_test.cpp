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

TEST(CudaLowRank, ProductsAreThoseInDouble) {
  run_alone_on_cuda([] {
    ASSERT_TRUE(cuda_kernels()) << why_no_cuda_kernels().value_or("");
    at::manual_seed(7);
    for (const auto& [batch, rows, columns, rank] : kSizes) {
      SCOPED_TRACE(c10::str(batch, " x ", rows, " x ", columns, ", rank ", rank));
      const at::Tensor m = random({batch, rows, columns});
      const at::Tensor q = random({batch, columns, rank});
      at::Tensor p = random({batch, rows, rank});
      ASSERT_TRUE(low_rank::has_kernels(m, rank));
      const at::Tensor exact_m = m.to(at::kDouble), exact_q = q.to(at::kDouble);

      low_rank::project(m, {}, q, p);
      EXPECT_LE(distance(p, exact_m.bmm(exact_q)), 1e-6);

      at::Tensor back = at::empty_like(q), again = at::empty_like(q);
      low_rank::project_back(m, {}, p, back);
      EXPECT_LE(distance(back, exact_m.transpose(1, 2).bmm(p.to(at::kDouble))), 1e-6);
      low_rank::project_back(m, {}, p, again);
      EXPECT_TRUE(at::equal(back, again)) << "not the same bits twice";

      at::Tensor rebuilt = at::empty_like(m);
      low_rank::rebuild(rebuilt, p, back);
      EXPECT_LE(
          distance(rebuilt, p.to(at::kDouble).bmm(back.to(at::kDouble).transpose(1, 2))),
          1e-6);

      // What was left out is fed back, with its last approximation taken off on the way.
      std::vector<low_rank::Residual> kept(static_cast<size_t>(batch));
      low_rank::Residuals residuals;
      at::Tensor owed = at::zeros_like(exact_m);
      for (int64_t index = 0; index < batch; ++index) {
        auto& each = kept[static_cast<size_t>(index)];
        each = {random({rows, columns}), random({rows, rank}), random({columns, rank})};
        owed[index] = each.sum.to(at::kDouble) -
                      each.p.to(at::kDouble).mm(each.q.to(at::kDouble).t());
        EXPECT_LE(distance(each.value(), owed[index]), 1e-6);
        residuals.push_back(&each);
      }
      low_rank::project(m, residuals, q, p);
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
        ASSERT_TRUE(low_rank::orthonormalize(batch, 0));
        const at::Tensor exact = batch.to(at::kDouble);
        const at::Tensor product = exact.transpose(1, 2).bmm(exact);
        EXPECT_LE((product - at::eye(rank, product.options())).abs().max().item<double>(),
                  1e-5)
            << rows << " x " << rank;
      }
    }
    // A column that depends on others, or is zero, becomes zero; one with NaN is NaN.
    at::Tensor batch = random({1, 100, 3});
    batch.select(2, 1).copy_(batch.select(2, 0) * 3);
    batch.select(2, 2).zero_();
    ASSERT_TRUE(low_rank::orthonormalize(batch, 1e-8));
    EXPECT_EQ(batch.narrow(2, 1, 2).abs().max().item<float>(), 0);
    batch = random({1, 100, 1});
    batch[0][5][0] = NAN;
    ASSERT_TRUE(low_rank::orthonormalize(batch, 0));
    EXPECT_TRUE(at::isnan(batch).all().item<bool>());
  });
}

TEST(CudaLowRank, AStepThatIsLostIsTakenBack) {
  run_alone_on_cuda([] {
    at::manual_seed(9);
    const at::Tensor m = random({1, 40, 30}), q = random({1, 30, 2});
    at::Tensor p = at::empty({1, 40, 2}, m.options());
    for (const bool lost : {false, true}) {
      low_rank::Residual residual{random({40, 30}), {}, {}};
      const at::Tensor before = residual.sum.clone();
      low_rank::project(m, {&residual}, q, p);
      at::Tensor check = q.sum();
      if (lost) check.fill_(NAN);
      low_rank::settle(residual, m[0], p[0], q[0], check);
      const at::Tensor expected =
          lost ? before.to(at::kDouble)
               : (before + m[0]).to(at::kDouble) -
                     p[0].to(at::kDouble).mm(q[0].to(at::kDouble).t());
      EXPECT_LE(distance(residual.value(), expected), 1e-5) << lost;
    }
  });
}

}  // namespace
}  // namespace brigade
