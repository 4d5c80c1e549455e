// The products of PowerSGD: M ≈ P Qᵀ, where M is (b, rows, columns), P is (b, rows, r) and
// Q is (b, columns, r). For float32 and small r there are kernels, on the CPU (with all of
// torch's threads) and on CUDA; the hook takes ATen's products elsewhere.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace brigade::low_rank {

// The error of a matrix's approximations so far: sum - P Qᵀ, or `sum` if there is no P. The
// next project(), which reads the matrix anyway, subtracts: this saves reading and writing
// a matrix.
struct Residual {
  at::Tensor sum;  // (rows, columns)
  at::Tensor p;    // (rows, r)
  at::Tensor q;    // (columns, r)
  // If defined, it holds the sum, and is not changed: project() copies it to `sum`.
  at::Tensor last = {};
  at::Tensor value() const;
};
// A matrix of a step. Functions take many at once, because on a device a launch takes
// longer than the work on a small matrix.
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
// Q; M does not change. Starts at the end of M, which the caller often wrote last.
// REQUIRES: every residual has a sum.
void project(const Matrices& matrices);
// Kernels only. Only adds M to each residual, as project() does.
void add(const Matrices& matrices);
// Kernels only. Q = Mᵀ P, with project()'s residual in place of M, if there is one.
void project_back(const Matrices& matrices);
// Kernels only. M = P Qᵀ, for one matrix.
void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q);

// The end of a matrix's step. The step is *lost* if `check` is not finite.
struct Ending {
  at::Tensor check;
  // The approximation to subtract from the residual, (rows, r) and (columns, r).
  at::Tensor p;
  at::Tensor q;
  at::Tensor* start = nullptr;  // if given, becomes q unless the step is lost
};
// Kernels only, after the last product, with an ending for each matrix: subtracts the
// ending's P Qᵀ from the residual or, if the step is lost, restores it as it was before
// project(), up to rounding; then M = P Qᵀ. On a device the host does not wait.
void finish(const Matrices& matrices, const std::vector<Ending>& endings);

// Columns that are to become orthonormal, (rows, r). If `from` is defined, they start as
// those of `from` or, where these are zero, of `spare`.
struct Columns {
  at::Tensor columns;
  at::Tensor from = {};
  at::Tensor spare = {};
};
// Columns that depend on others become zero. Without a kernel for it, returns false and
// does nothing.
bool orthonormalize(const std::vector<Columns>& matrices, double epsilon);

}  // namespace brigade::low_rank
