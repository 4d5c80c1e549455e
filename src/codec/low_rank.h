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
// A matrix of a step. Functions take many at once: on a device a launch takes longer than
// the work on a small matrix.
struct Matrix {
  at::Tensor m;
  at::Tensor p;
  at::Tensor q;
  Residual* residual = nullptr;  // null: errors are not fed back
};
using Matrices = std::vector<Matrix>;

// Whether the kernels take a matrix M and this r. Functions marked "Kernels only" require
// it.
bool has_kernels(const at::Tensor& m, int64_t rank);

// Kernels only. Without a residual: P = M Q. With one: M is added to it, and P = residual
// Q; M stays as it is. Begins at the end, which a caller has often written last. REQUIRES:
// every residual has a sum.
void project(const Matrices& matrices);
// Kernels only. M is added to each residual, as project() does it, and nothing else.
void add(const Matrices& matrices);
// Kernels only. Q = Mᵀ P; a residual that project() left takes the place of M.
void project_back(const Matrices& matrices);
// Kernels only. M = P Qᵀ, of one matrix.
void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q);

// How a matrix's step ends. It is *lost* if `check` is not finite.
struct Ending {
  at::Tensor check;
  // The approximation that the residual leaves out, (rows, r) and (columns, r).
  at::Tensor p;
  at::Tensor q;
  at::Tensor* start = nullptr;  // becomes q, if it is given and the step is not lost
};
// Kernels only, after the last product, with an ending for each matrix: the residual
// becomes what the ending's P Qᵀ leaves out of it or, if the step is lost, what it was
// before project(), up to rounding; then M = P Qᵀ. On a device the host does not wait.
void finish(const Matrices& matrices, const std::vector<Ending>& endings);

// Columns that are to become orthonormal, (rows, r). If `from` is defined: those of `from`
// or, where these have only zeros, of `spare`.
struct Columns {
  at::Tensor columns;
  at::Tensor from = {};
  at::Tensor spare = {};
};
// Columns that depend on others become zero. Returns false, and does nothing, if there is
// no kernel for it.
bool orthonormalize(const std::vector<Columns>& matrices, double epsilon);

}  // namespace brigade::low_rank
