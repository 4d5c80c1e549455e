// SPDX-License-Identifier: BSD-3-Clause
// Mixed precision: the dtypes that a model computes and communicates in.
#pragma once
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "brigade/export.h"

namespace brigade {

// Forward and backward passes compute in a smaller dtype; parameters, gradients and the
// optimizer stay in the model's own. Each field: fp16, bf16, fp32 or fp64; not set: as the
// model has it. At least one is set. Only floating-point tensors are cast.
//
// From forward() to the end of backward() the model's parameters *are* the copies in
// param_dtype; each gets its own data back when its bucket is full, all others (those that
// need no gradient, buffers) when backward() ends. A parameter that was changed meanwhile
// is an error; what forward() wrote into buffers is kept. Without gradients (NoGradGuard)
// they are put back when forward() returns, and so they are when it throws. One backward
// pass for each forward pass: a graph that was retained finds the full-precision data.
struct BRIGADE_API MixedPrecision {
  // Parameters, and the floating-point tensors among forward()'s arguments.
  std::optional<at::ScalarType> param_dtype = {};
  // What a bucket is cast to for the hook, and so what travels; the result is cast back.
  // Not set: param_dtype. Gradients of sparse embeddings travel as they are.
  std::optional<at::ScalarType> reduce_dtype = {};
  // Buffers, from forward() to the end of backward().
  std::optional<at::ScalarType> buffer_dtype = {};

  // "param bf16, reduce bf16"
  std::string describe() const;
};

}  // namespace brigade
