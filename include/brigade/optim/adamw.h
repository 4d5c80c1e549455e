// SPDX-License-Identifier: BSD-3-Clause
// AdamW: Adam, except that weight decay shrinks the parameter itself and leaves the
// gradient alone.
#pragma once
#include "brigade/export.h"
#include "brigade/optim/adam.h"

namespace brigade::optim {

struct BRIGADE_API AdamWOptions {
  double lr = 1e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 1e-2;                   // >= 0
  bool amsgrad = false;   // divides by the largest mean square there was
  bool maximize = false;  // climbs instead of descending

  static constexpr const char* kName = "adamw";
  static constexpr std::array<const char*, 3> kSlots{"exp_avg", "exp_avg_sq",
                                                     "max_exp_avg_sq"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  void step_on_gpu(const std::vector<SlotStep>& steps) const;
  static void fields(auto& self, auto&& field) { detail::adam_fields(self, field); }
};

using AdamW = OptimizerOf<AdamWOptions>;

}  // namespace brigade::optim
