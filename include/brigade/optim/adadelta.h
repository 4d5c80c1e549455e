// Adadelta: steps in proportion to the changes there were.
#pragma once
#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct AdadeltaOptions {
  double lr = 1.0;          // >= 0
  double rho = 0.9;         // 0 to 1
  double eps = 1e-6;        // >= 0
  double weight_decay = 0;  // >= 0
  bool maximize = false;    // climbs instead of descending

  void check() const;
  template <class Self, class Field>
  static void fields(Self& self, Field&& field) {
    field("lr", self.lr);
    field("rho", self.rho);
    field("eps", self.eps);
    field("weight_decay", self.weight_decay);
    field("maximize", self.maximize);
  }
};

class Adadelta : public OptimizerOf<AdadeltaOptions> {
 public:
  explicit Adadelta(const AdadeltaOptions& options = {}) : OptimizerOf(options) {}
  std::string name() const override { return "adadelta"; }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override;
  std::vector<std::string_view> slot_names() const override;
};

}  // namespace brigade::optim
