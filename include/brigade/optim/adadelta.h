// SPDX-License-Identifier: BSD-3-Clause
// Adadelta: steps in proportion to the changes there were.
#pragma once
#include "brigade/export.h"
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct BRIGADE_API AdadeltaOptions {
  double lr = 1.0;          // >= 0
  double rho = 0.9;         // 0 to 1
  double eps = 1e-6;        // >= 0
  double weight_decay = 0;  // >= 0
  bool maximize = false;    // climbs instead of descending

  static constexpr const char* kName = "adadelta";
  static constexpr std::array<const char*, 2> kSlots{"square_avg", "acc_delta"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) {
    field("lr", self.lr);
    field("rho", self.rho);
    field("eps", self.eps);
    field("weight_decay", self.weight_decay);
    field("maximize", self.maximize);
  }
};

using Adadelta = OptimizerOf<AdadeltaOptions>;

}  // namespace brigade::optim
