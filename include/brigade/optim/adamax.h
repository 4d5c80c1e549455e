// Adamax: Adam with the largest magnitude in place of the mean square.
#pragma once
#include <utility>

#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct AdamaxOptions {
  double lr = 2e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 0;                      // >= 0
  bool maximize = false;                        // climbs instead of descending

  void check() const;
  template <class Self, class Field>
  static void fields(Self& self, Field&& field) {
    field("lr", self.lr);
    field("beta1", self.betas.first);
    field("beta2", self.betas.second);
    field("eps", self.eps);
    field("weight_decay", self.weight_decay);
    field("maximize", self.maximize);
  }
};

class Adamax : public OptimizerOf<AdamaxOptions> {
 public:
  explicit Adamax(const AdamaxOptions& options = {}) : OptimizerOf(options) {}
  std::string name() const override { return "adamax"; }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override;
  std::vector<std::string_view> slot_names() const override;
};

}  // namespace brigade::optim
