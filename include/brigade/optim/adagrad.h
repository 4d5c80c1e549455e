// Adagrad: steps shrink with the sum of all squared gradients.
#pragma once
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct AdagradOptions {
  double lr = 1e-2;                      // >= 0
  double lr_decay = 0;                   // >= 0
  double weight_decay = 0;               // >= 0
  double initial_accumulator_value = 0;  // >= 0
  double eps = 1e-10;                    // >= 0
  bool maximize = false;                 // climbs instead of descending

  void check() const;
  template <class Self, class Field>
  static void fields(Self& self, Field&& field) {
    field("lr", self.lr);
    field("lr_decay", self.lr_decay);
    field("weight_decay", self.weight_decay);
    field("initial_accumulator_value", self.initial_accumulator_value);
    field("eps", self.eps);
    field("maximize", self.maximize);
  }
};

class Adagrad : public OptimizerOf<AdagradOptions> {
 public:
  explicit Adagrad(const AdagradOptions& options = {}) : OptimizerOf(options) {}
  std::string name() const override { return "adagrad"; }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override;
  std::vector<std::string_view> slot_names() const override;
  bool takes_sparse() const override { return true; }
};

}  // namespace brigade::optim
