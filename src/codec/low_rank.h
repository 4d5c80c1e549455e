// The products of PowerSGD: M (b, rows, columns) ≈ P (b, rows, r) times Q (b, columns, r)
// turned. Kernels that use all of torch's threads for float32 on CPU and small r, ATen
// elsewhere.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace brigade::low_rank {

// What came out of a matrix's approximations too little so far: sum - P Qᵀ, or `sum` where
// there is no P. The difference is left to whoever feeds it back: one who makes it at once
// reads and writes a matrix more.
struct Residual {
  at::Tensor sum;  // (rows, columns)
  at::Tensor p;    // (rows, r)
  at::Tensor q;    // (columns, r)
  at::Tensor value() const;
};
// One for each matrix of a batch, or none at all where errors are not fed back.
using Residuals = std::vector<Residual*>;

// Whether the kernels take a matrix M and this r. The functions that are for them say so.
bool has_kernels(const at::Tensor& m, int64_t rank);

// Kernels only. P = M Q, without residuals. With them each becomes M plus itself, and
// P = residual Q; M stays as it is. REQUIRES: every residual has a sum.
void project(const at::Tensor& m, const Residuals& residuals, const at::Tensor& q,
             at::Tensor p);
// Kernels only. Q = Mᵀ P, or with the residuals that project() left in the place of M.
void project_back(const at::Tensor& m, const Residuals& residuals, const at::Tensor& p,
                  at::Tensor q);
// Kernels only. M = P Qᵀ.
void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q);

// As if project() had never met this residual, but for rounding. What is not finite is
// lost.
void take_back(Residual& residual, const at::Tensor& m);

// In place: the columns of each matrix of a batch (b, rows, r) become orthonormal, those
// that depend on others zero. False: it is not for kernels, and nothing was done.
bool orthonormalize(const at::Tensor& batch, double epsilon);

}  // namespace brigade::low_rank
