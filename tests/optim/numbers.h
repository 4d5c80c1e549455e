// The parameter and the gradients of tests/data/make_optimizer_reference.py.
#pragma once
#include "brigade/optim.h"
#include "ddp/models.h"

namespace brigade::testing {

inline torch::Tensor rows() { return torch::arange(3, torch::kDouble).unsqueeze(1); }
inline torch::Tensor columns() { return torch::arange(5, torch::kDouble); }
inline torch::Tensor start() { return torch::sin(rows() * 1.1 + columns() * 0.7); }
inline torch::Tensor gradient(int step) {
  return torch::cos(rows() * 0.9 + columns() * 1.7 + step * 1.3);
}

}  // namespace brigade::testing
