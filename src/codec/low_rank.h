// The products of PowerSGD: M ≈ P Qᵀ, where M is (b, rows, columns), P is (b, rows, r) and
// Q is (b, columns, r). For float32 and small r there are kernels, on the CPU (with all of
// torch's threads) and on CUDA; the hook takes ATen's products elsewhere.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace brigade::low_rank {

// What the approximations of a matrix have left out so far: sum - P Qᵀ, or `sum` if there
// is no P. The subtraction is left to the next project(), which reads the matrix anyway: to
// subtract at once would read and write a matrix more.
struct Residual {
  at::Tensor sum;  // (rows, columns)
  at::Tensor p;    // (rows, r)
  at::Tensor q;    // (columns, r)
  // If it is defined, the sum is here, and project() brings it to `sum`: memory that is not
  // to be changed.
  at::Tensor last = {};
  at::Tensor value() const;
};
// One for each matrix of a batch, or none at all if errors are not fed back.
using Residuals = std::vector<Residual*>;

// Whether the kernels take a matrix M and this r. Functions marked "Kernels only" require
// it.
bool has_kernels(const at::Tensor& m, int64_t rank);

// Kernels only. Without residuals: P = M Q. With residuals: M is added to each residual,
// and P = residual Q; M stays as it is. REQUIRES: every residual has a sum.
void project(const at::Tensor& m, const Residuals& residuals, const at::Tensor& q,
             at::Tensor p);
// Kernels only. M is added to each residual, as project() does it, and nothing else.
void add(const at::Tensor& m, const Residuals& residuals, int64_t rank);
// Kernels only. Q = Mᵀ P; with residuals, those that project() left take the place of M.
void project_back(const at::Tensor& m, const Residuals& residuals, const at::Tensor& p,
                  at::Tensor q);
// Kernels only. M = P Qᵀ.
void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q);

// Kernels only, after the last product: the residual becomes what P Qᵀ leaves out of it.
// Unless `check`, a sum over Q, is finite: then it is as it was before project(). On a
// device the host does not wait.
void settle(Residual& residual, const at::Tensor& m, const at::Tensor& p,
            const at::Tensor& q, const at::Tensor& check);
// Undoes what project() did to this residual, up to rounding. Values that are not finite
// become zero.
void take_back(Residual& residual, const at::Tensor& m);

// Makes the columns of each matrix of a batch (b, rows, r) orthonormal, in place. Columns
// that depend on others become zero. Returns false, and does nothing, if there is no kernel
// for it.
bool orthonormalize(const at::Tensor& batch, double epsilon);

}  // namespace brigade::low_rank
