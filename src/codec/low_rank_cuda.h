// The functions of low_rank.h on a CUDA device. REQUIRES, for all of them: has(m, rank).
#pragma once
#include "codec/low_rank.h"

namespace brigade::low_rank::cuda {

bool has(const at::Tensor& m, int64_t rank);
void project(const Matrices& matrices);
void project_back(const Matrices& matrices);
void rebuild(const at::Tensor& m, const at::Tensor& p, const at::Tensor& q);
void finish(const Matrices& matrices, const std::vector<Ending>& endings);
void orthonormalize(const std::vector<Columns>& matrices, double epsilon);

}  // namespace brigade::low_rank::cuda
