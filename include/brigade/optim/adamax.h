// SPDX-License-Identifier: BSD-3-Clause
// Adamax: Adam with the largest magnitude in place of the mean square.
#pragma once
#include "brigade/export.h"
#include "brigade/optim/adam.h"

namespace brigade::optim {

struct BRIGADE_API AdamaxOptions {
  double lr = 2e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 0;                      // >= 0
  bool maximize = false;                        // climbs instead of descending

  static constexpr const char* kName = "adamax";
  static constexpr std::array<const char*, 2> kSlots{"exp_avg", "exp_inf"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) { detail::adam_fields(self, field); }
};

using Adamax = OptimizerOf<AdamaxOptions>;

}  // namespace brigade::optim
