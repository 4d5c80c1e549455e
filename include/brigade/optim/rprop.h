// SPDX-License-Identifier: BSD-3-Clause
// Rprop: only the gradient's sign counts; each element has its own step size.
#pragma once
#include <utility>

#include "brigade/export.h"
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct BRIGADE_API RpropOptions {
  double lr = 1e-2;                                // >= 0; the first step size
  std::pair<double, double> etas{0.5, 1.2};        // 0 < first < 1 < second
  std::pair<double, double> step_sizes{1e-6, 50};  // the least and the most
  bool maximize = false;                           // climbs instead of descending

  static constexpr const char* kName = "rprop";
  static constexpr std::array<const char*, 2> kSlots{"prev", "step_size"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) {
    field("lr", self.lr);
    field("eta_minus", self.etas.first);
    field("eta_plus", self.etas.second);
    field("step_min", self.step_sizes.first);
    field("step_max", self.step_sizes.second);
    field("maximize", self.maximize);
  }
};

using Rprop = OptimizerOf<RpropOptions>;

}  // namespace brigade::optim
