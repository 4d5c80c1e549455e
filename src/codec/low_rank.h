// The products of PowerSGD: M (b, rows, columns) ≈ P (b, rows, r) times Q (b, columns, r)
// turned. Kernels for float32 on CPU and small r, ATen elsewhere. `errors` has one matrix
// for each of the batch, or undefined tensors.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade::low_rank {

// M += errors, where defined; P = M Q.
void project(const at::Tensor& m, at::TensorList errors, const at::Tensor& q, at::Tensor p);
// Q = Mᵀ P.
void project_back(const at::Tensor& m, const at::Tensor& p, at::Tensor q);
// errors = M - P Qᵀ, where defined; M = P Qᵀ.
void rebuild(const at::Tensor& m, at::TensorList errors, const at::Tensor& p,
             const at::Tensor& q);

}  // namespace brigade::low_rank
