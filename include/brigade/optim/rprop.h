// Rprop: only the gradient's sign counts; each element has its own step size.
#pragma once
#include <utility>

#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct RpropOptions {
  double lr = 1e-2;                                // >= 0; the first step size
  std::pair<double, double> etas{0.5, 1.2};        // 0 < first < 1 < second
  std::pair<double, double> step_sizes{1e-6, 50};  // the least and the most
  bool maximize = false;                           // climbs instead of descending

  void check() const;
  template <class Self, class Field>
  static void fields(Self& self, Field&& field) {
    field("lr", self.lr);
    field("eta_minus", self.etas.first);
    field("eta_plus", self.etas.second);
    field("step_min", self.step_sizes.first);
    field("step_max", self.step_sizes.second);
    field("maximize", self.maximize);
  }
};

class Rprop : public OptimizerOf<RpropOptions> {
 public:
  explicit Rprop(const RpropOptions& options = {}) : OptimizerOf(options) {}
  std::string name() const override { return "rprop"; }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override;
  std::vector<std::string_view> slot_names() const override;
};

}  // namespace brigade::optim
