// The functions of low_rank.h on a CUDA device. REQUIRES, for all of them: has(m, rank).
#pragma once
#include "codec/low_rank.h"

namespace brigade::low_rank::cuda {

bool has(const at::Tensor& m, int64_t rank);
// `residual` may be null.
void project(const at::Tensor& m, const Residual* residual, const at::Tensor& q,
             at::Tensor p);
void project_back(const at::Tensor& m, const at::Tensor& p, at::Tensor q);
void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q);
void orthonormalize(const at::Tensor& batch, double epsilon);
// Takes back, unless `check`, one float, is finite; the host does not wait for it.
void take_back_if_lost(const at::Tensor& check, const at::Tensor& m, at::Tensor sum);

}  // namespace brigade::low_rank::cuda
