// SPDX-License-Identifier: BSD-3-Clause
// Stochastic gradient descent, with momentum and Nesterov's form of it.
#pragma once
#include "brigade/export.h"
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct BRIGADE_API SGDOptions {
  double lr = 1e-3;         // >= 0
  double momentum = 0;      // >= 0; 0: no state
  double dampening = 0;     // of what enters the momentum
  double weight_decay = 0;  // >= 0
  bool nesterov = false;    // wants momentum, and no dampening
  bool maximize = false;    // climbs instead of descending

  static constexpr const char* kName = "sgd";
  static constexpr std::array<const char*, 1> kSlots{"momentum_buffer"};
  static constexpr bool kTakesSparse = true;
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  void step_on_gpu(const std::vector<SlotStep>& steps) const;
  static void fields(auto& self, auto&& field) {
    field("lr", self.lr);
    field("momentum", self.momentum);
    field("dampening", self.dampening);
    field("weight_decay", self.weight_decay);
    field("nesterov", self.nesterov);
    field("maximize", self.maximize);
  }
};

using SGD = OptimizerOf<SGDOptions>;

}  // namespace brigade::optim
