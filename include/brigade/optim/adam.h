// Adam and its AMSGrad form. Weight decay is added to the gradient; see AdamW.
#pragma once
#include <utility>

#include "brigade/optim/optimizer.h"

namespace brigade::optim {

struct AdamOptions {
  double lr = 1e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 0;                      // >= 0
  bool amsgrad = false;   // divides by the largest mean square there was
  bool maximize = false;  // climbs instead of descending

  void check() const;
  template <class Self, class Field>
  static void fields(Self& self, Field&& field) {
    field("lr", self.lr);
    field("beta1", self.betas.first);
    field("beta2", self.betas.second);
    field("eps", self.eps);
    field("weight_decay", self.weight_decay);
    field("amsgrad", self.amsgrad);
    field("maximize", self.maximize);
  }
};

class Adam : public OptimizerOf<AdamOptions> {
 public:
  explicit Adam(const AdamOptions& options = {}) : OptimizerOf(options) {}
  std::string name() const override { return "adam"; }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override;
  std::vector<std::string_view> slot_names() const override;
};

}  // namespace brigade::optim
