// SPDX-License-Identifier: BSD-3-Clause
// Adam and its AMSGrad form. Weight decay is added to the gradient; see AdamW.
#pragma once
#include <utility>

#include "brigade/export.h"
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

namespace detail {
// The fields of Adam and its relatives.
void adam_fields(auto& self, auto& field) {
  field("lr", self.lr);
  field("beta1", self.betas.first);
  field("beta2", self.betas.second);
  field("eps", self.eps);
  field("weight_decay", self.weight_decay);
  if constexpr (requires { self.amsgrad; }) field("amsgrad", self.amsgrad);
  field("maximize", self.maximize);
}
}  // namespace detail

struct BRIGADE_API AdamOptions {
  double lr = 1e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 0;                      // >= 0
  bool amsgrad = false;   // divides by the largest mean square there was
  bool maximize = false;  // climbs instead of descending

  static constexpr const char* kName = "adam";
  static constexpr std::array<const char*, 3> kSlots{"exp_avg", "exp_avg_sq",
                                                     "max_exp_avg_sq"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  void step_on_gpu(const std::vector<SlotStep>& steps) const;
  static void fields(auto& self, auto&& field) { detail::adam_fields(self, field); }
};

using Adam = OptimizerOf<AdamOptions>;

}  // namespace brigade::optim
