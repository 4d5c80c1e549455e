// Stochastic gradient descent, with momentum and Nesterov's form of it.
#pragma once
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct SGDOptions {
  double lr = 1e-3;         // >= 0
  double momentum = 0;      // >= 0; 0: no state
  double dampening = 0;     // of what enters the momentum
  double weight_decay = 0;  // >= 0
  bool nesterov = false;    // wants momentum, and no dampening
  bool maximize = false;    // climbs instead of descending

  void check() const;
  template <class Self, class Field>
  static void fields(Self& self, Field&& field) {
    field("lr", self.lr);
    field("momentum", self.momentum);
    field("dampening", self.dampening);
    field("weight_decay", self.weight_decay);
    field("nesterov", self.nesterov);
    field("maximize", self.maximize);
  }
};

class SGD : public OptimizerOf<SGDOptions> {
 public:
  explicit SGD(const SGDOptions& options = {}) : OptimizerOf(options) {}
  std::string name() const override { return "sgd"; }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override;
  std::vector<std::string_view> slot_names() const override;
  bool takes_sparse() const override { return true; }
};

}  // namespace brigade::optim
