// SPDX-License-Identifier: BSD-3-Clause
// Adagrad: steps shrink with the sum of all squared gradients.
#pragma once
#include "brigade/export.h"
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct BRIGADE_API AdagradOptions {
  double lr = 1e-2;                      // >= 0
  double lr_decay = 0;                   // >= 0
  double weight_decay = 0;               // >= 0
  double initial_accumulator_value = 0;  // >= 0
  double eps = 1e-10;                    // >= 0
  bool maximize = false;                 // climbs instead of descending

  static constexpr const char* kName = "adagrad";
  static constexpr std::array<const char*, 1> kSlots{"sum"};
  static constexpr bool kTakesSparse = true;
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) {
    field("lr", self.lr);
    field("lr_decay", self.lr_decay);
    field("weight_decay", self.weight_decay);
    field("initial_accumulator_value", self.initial_accumulator_value);
    field("eps", self.eps);
    field("maximize", self.maximize);
  }
};

using Adagrad = OptimizerOf<AdagradOptions>;

}  // namespace brigade::optim
