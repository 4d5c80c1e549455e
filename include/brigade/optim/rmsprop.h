// SPDX-License-Identifier: BSD-3-Clause
// RMSprop, centered if wanted, with momentum if wanted.
#pragma once
#include "brigade/export.h"
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct BRIGADE_API RMSpropOptions {
  double lr = 1e-2;         // >= 0
  double alpha = 0.99;      // >= 0
  double eps = 1e-8;        // >= 0
  double weight_decay = 0;  // >= 0
  double momentum = 0;      // >= 0
  bool centered = false;    // divides by the deviation, not the root mean square
  bool maximize = false;    // climbs instead of descending

  static constexpr const char* kName = "rmsprop";
  static constexpr std::array<const char*, 3> kSlots{"square_avg", "grad_avg",
                                                     "momentum_buffer"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) {
    field("lr", self.lr);
    field("alpha", self.alpha);
    field("eps", self.eps);
    field("weight_decay", self.weight_decay);
    field("momentum", self.momentum);
    field("centered", self.centered);
    field("maximize", self.maximize);
  }
};

using RMSprop = OptimizerOf<RMSpropOptions>;

}  // namespace brigade::optim
