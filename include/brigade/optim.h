// SPDX-License-Identifier: BSD-3-Clause
// Optimizers that step one parameter at a time, and learning rates by step.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "brigade/error.h"
#include "brigade/named_state.h"

namespace torch::optim {
class Optimizer;
}

namespace brigade::optim {

// ---- Functional optimizers --------------------------------------------------------------
//
// The interface that an optimizer needs to step in the backward pass, and an adapter for
// those of torch::optim.

// step_param changes `parameter` by one step with `gradient`, which it leaves alone.
// Threads of the engine call it, one at a time, with gradients disabled.
template <class T>
concept FunctionalOptimizer = requires(T& optimizer, const at::Tensor& parameter,
                                       const at::Tensor& gradient) {
  optimizer.step_param(parameter, gradient);
};

// Adapts any optimizer of torch::optim except LBFGS, which needs all gradients at once. It
// steps the parameters that the optimizer was made with, each with the options of its
// group. The optimizer keeps its state, and its own options set learning rates.
class BRIGADE_API TorchOptimizer {
 public:
  explicit TorchOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  // Throws ConfigError for a parameter that is not in the optimizer.
  void step_param(const at::Tensor& parameter, const at::Tensor& gradient);
  std::string fingerprint() const;
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  std::mutex mutex_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::unordered_map<const c10::TensorImpl*, size_t> group_of_;
};
BRIGADE_API std::shared_ptr<TorchOptimizer> functional(
    std::shared_ptr<torch::optim::Optimizer> optimizer);

// A parameter and its gradient.
struct ParameterStep {
  at::Tensor parameter = {};
  at::Tensor gradient = {};
};

// An optimizer of any type. `description` must be equal on all ranks; it is the optimizer's
// fingerprint(), if it has one.
struct Stepper {
  std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)> step;
  std::string description = "optimizer";
  // Steps many parameters at once. Empty: they step one after the other.
  std::function<void(const std::vector<ParameterStep>& steps)> step_all = nullptr;

  void all(const std::vector<ParameterStep>& steps) const {
    if (step_all) return step_all(steps);
    for (const ParameterStep& each : steps) step(each.parameter, each.gradient);
  }
};

template <class T>
Stepper stepper_of(std::shared_ptr<T> optimizer) {
  static_assert(FunctionalOptimizer<T>,
                "this optimizer can't step in the backward pass: it has no "
                "step_param(const at::Tensor& parameter, const at::Tensor& gradient). For "
                "one of torch::optim, give brigade::optim::functional(optimizer)");
  Stepper stepper;
  if constexpr (FunctionalOptimizer<T>) {
    if (!optimizer) throw ConfigError("the optimizer for the backward pass is null");
    if constexpr (requires { optimizer->fingerprint(); }) {
      stepper.description = optimizer->fingerprint();
    }
    stepper.step = [optimizer](const at::Tensor& parameter, const at::Tensor& gradient) {
      optimizer->step_param(parameter, gradient);
    };
    if constexpr (requires(const std::vector<ParameterStep>& steps) {
                    optimizer->step_params(steps);
                  }) {
      stepper.step_all = [optimizer](const std::vector<ParameterStep>& steps) {
        optimizer->step_params(steps);
      };
    }
  }
  return stepper;
}

// ---- Optimizers -------------------------------------------------------------------------
//
// These optimizers get the gradient as an argument and step one parameter at a time, so
// they can work while other gradients still arrive.
//
//   brigade::optim::Adam adam({.lr = 1e-3});
//   adam.step_param(parameter, gradient);

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// An optimizer's state as a checkpoint stores it. A tensor's key is the parameter's name, a
// dot and the slot's name: "layer.weight.exp_avg". The values are the number of steps of
// each parameter, and the options.
using OptimizerState = NamedState;

// An optimizer's state for one parameter.
struct Slots {
  at::Tensor parameter = {};
  int64_t step = 0;
  std::vector<at::Tensor> tensors =
      {};  // by the optimizer's slot names; undefined until used

  // The tensor at `index`; if it is undefined yet, it is made, with `fill` in every
  // element.
  at::Tensor& tensor(size_t index, double fill = 0);
};

// A parameter's step under way; the gradient has the parameter's dtype and layout.
struct SlotStep {
  at::Tensor parameter = {};
  at::Tensor gradient = {};
  Slots* slots = nullptr;
};

// Several threads may call step_param at once, for different parameters, but no other
// function meanwhile. State and options are kept by parameter, whatever bucket it is in.
// State tensors have the parameter's dtype, device and layout.
class BRIGADE_API Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  virtual std::string name() const = 0;
  // Changes the parameter by one step. The gradient is left as it is; one of another dtype
  // is cast to the parameter's. Throws ConfigError if the shapes differ. float32 on a CPU
  // takes one pass over memory; everything else uses ATen's operations.
  void step_param(const at::Tensor& parameter, const at::Tensor& gradient);
  // The same for several parameters, to the same bits. On a GPU, Adam, AdamW and SGD use
  // one kernel for all.
  void step_params(const std::vector<ParameterStep>& steps);

  // Sets the learning rate from the next step on, for all parameters without options of
  // their own.
  virtual void set_lr(double lr) = 0;
  // The same for these parameters only.
  virtual void set_lr(const std::vector<at::Tensor>& parameters, double lr) = 0;

  // Shares its tensors with the optimizer. It has no entries for parameters that never
  // stepped.
  OptimizerState state(const NamedParameters& parameters) const;
  // Replaces the state of these parameters, and all options. Throws ConfigError, and
  // changes nothing, if `state` is another optimizer's, lacks an entry or has other shapes
  // or dtypes.
  void load_state(const OptimizerState& state, const NamedParameters& parameters);
  // The same in two parts: this function checks and copies; the function it returns makes
  // the change and can't fail. The optimizer must outlive that function.
  std::function<void()> read_state(const OptimizerState& state,
                                   const NamedParameters& parameters);
  // Drops the state of all parameters; options stay.
  void reset();

  // Name and options, readable.
  virtual std::string fingerprint() const = 0;

 protected:
  // `slots.step` counts this step already. Gradients are disabled.
  virtual void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) = 0;
  // Does all steps at once, on a GPU. If it can't, it changes nothing and returns false.
  virtual bool step_on_gpu(std::vector<SlotStep>&) { return false; }
  virtual std::vector<std::string_view> slot_names() const = 0;
  virtual bool takes_sparse() const { return false; }
  using Values = std::map<std::string, std::string>;
  virtual void save_options(const NamedParameters& parameters, Values& values) const = 0;
  // Checks the options and returns a function that sets them.
  virtual std::function<void()> read_options(const NamedParameters& parameters,
                                             const Values& values) = 0;

 private:
  void check(const at::Tensor& parameter, const at::Tensor& gradient) const;
  SlotStep begin_step(const ParameterStep& step);
  Slots& slots_of(const at::Tensor& parameter);
  Slots read_slots(const OptimizerState& state, const std::string& parameter_name,
                   const at::Tensor& parameter) const;

  mutable std::mutex mutex_;  // guards the table, not its entries
  std::unordered_map<const c10::TensorImpl*, Slots> table_;
};

namespace detail {

// Options to text and back. parse takes the value under `key`, or throws ConfigError.
BRIGADE_API std::string text_of(double value);
BRIGADE_API std::string text_of(bool value);
BRIGADE_API void parse(const std::map<std::string, std::string>& values,
                       const std::string& key, double& value);
BRIGADE_API void parse(const std::map<std::string, std::string>& values,
                       const std::string& key, bool& value);
// Throws ConfigError ("SGD: lr is -1, but must be …") unless `holds`.
BRIGADE_API void require(bool holds, const char* optimizer, const char* field, double value,
                         const char* rule);

}  // namespace detail

// An optimizer is its options: an aggregate with a field `lr` and these members.
// clang-format off
//   kName         the name in messages, checkpoints and make_optimizer
//   kSlots        an array with the names of its state tensors for a parameter
//   kTakesSparse  true if it can step with sparse gradients; may be left out
//   check()       throws ConfigError for values out of range
//   fields(self, visitor)             calls the visitor with each field's name and value
//   step(parameter, gradient, slots)  changes the parameter, see Optimizer::step
//   step_on_gpu(steps)                changes many at once; may be left out
// clang-format on
template <class Options>
class OptimizerOf : public Optimizer {
 public:
  explicit OptimizerOf(const Options& options = {}) : options_(options) {
    options_.check();
  }
  std::string name() const override { return Options::kName; }

  // The options of parameters without options of their own.
  const Options& options() const { return options_; }
  const Options& options(const at::Tensor& parameter) const {
    const auto found = own_.find(parameter.unsafeGetTensorImpl());
    return found == own_.end() ? options_ : found->second;
  }
  // Sets options from the next step on. Throws ConfigError for bad ones.
  void set_options(const Options& options) {
    options.check();
    options_ = options;
  }
  void set_options(const std::vector<at::Tensor>& parameters, const Options& options) {
    options.check();
    for (const at::Tensor& parameter : parameters) {
      own_[parameter.unsafeGetTensorImpl()] = options;
    }
  }
  void set_lr(double lr) override {
    Options changed = options_;
    changed.lr = lr;
    set_options(changed);
  }
  void set_lr(const std::vector<at::Tensor>& parameters, double lr) override {
    for (const at::Tensor& parameter : parameters) {
      Options changed = options(parameter);
      changed.lr = lr;
      set_options({parameter}, changed);
    }
  }

  std::string fingerprint() const override {
    std::string text = name();
    Options::fields(options_, [&](const char* field, const auto& value) {
      text += std::string(text.size() == name().size() ? ":" : ",") + field + "=" +
              detail::text_of(value);
    });
    return text;
  }

 protected:
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) override {
    options(parameter).step(parameter, gradient, slots);
  }
  bool step_on_gpu(std::vector<SlotStep>& steps) override {
    if constexpr (requires(const Options& all) { all.step_on_gpu(steps); }) {
      std::map<const Options*, std::vector<SlotStep>> by_options;
      for (SlotStep& step : steps)
        by_options[&options(step.parameter)].push_back(std::move(step));
      for (auto& [own, theirs] : by_options) own->step_on_gpu(theirs);
      return true;
    }
    return false;
  }
  std::vector<std::string_view> slot_names() const override {
    return {Options::kSlots.begin(), Options::kSlots.end()};
  }
  bool takes_sparse() const override {
    if constexpr (requires { Options::kTakesSparse; }) return Options::kTakesSparse;
    return false;
  }
  void save_options(const NamedParameters& parameters, Values& values) const override {
    const auto save = [&](const std::string& prefix, const Options& options) {
      Options::fields(options, [&](const char* field, const auto& value) {
        values[prefix + field] = detail::text_of(value);
      });
    };
    save("options.", options_);
    for (const auto& [name, parameter] : parameters) {
      const auto found = own_.find(parameter.unsafeGetTensorImpl());
      if (found != own_.end()) save(name + ".options.", found->second);
    }
  }
  std::function<void()> read_options(const NamedParameters& parameters,
                                     const Values& values) override {
    const auto read = [&](const std::string& prefix) {
      Options options;
      Options::fields(options, [&](const char* field, auto& value) {
        detail::parse(values, prefix + field, value);
      });
      options.check();
      return options;
    };
    std::unordered_map<const c10::TensorImpl*, Options> own;
    for (const auto& [name, parameter] : parameters) {
      if (values.count(name + ".options.lr")) {
        own[parameter.unsafeGetTensorImpl()] = read(name + ".options.");
      }
    }
    return [this, all = read("options."), own = std::move(own)] {
      options_ = all;
      own_ = own;
    };
  }

 private:
  Options options_;
  std::unordered_map<const c10::TensorImpl*, Options> own_;
};

// "adam:lr=0.001,amsgrad=1": a name and options as in the aggregates (betas and the like as
// beta1 and beta2). Throws ConfigError that lists what is known and, for a near miss, the
// likely one.
BRIGADE_API std::shared_ptr<Optimizer> make_optimizer(std::string_view spec);
BRIGADE_API std::vector<std::string_view> optimizer_names();

// ---- SGD --------------------------------------------------------------------------------
//
// Stochastic gradient descent, with momentum or Nesterov's momentum.

struct BRIGADE_API SGDOptions {
  double lr = 1e-3;         // >= 0
  double momentum = 0;      // >= 0; 0: no state
  double dampening = 0;     // reduces what enters the momentum
  double weight_decay = 0;  // >= 0
  bool nesterov = false;    // needs momentum, and no dampening
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

// ---- Adam -------------------------------------------------------------------------------
//
// Adam and its AMSGrad form. Weight decay is added to the gradient; see AdamW.

namespace detail {
// The fields of Adam and its relatives.
void adam_fields(auto& self, auto& field) {
  field("lr", self.lr);
  field("beta1", self.betas.first);
  field("beta2", self.betas.second);
  field("eps", self.eps);
  field("weight_decay", self.weight_decay);
  if constexpr (requires { self.amsgrad; }) field("amsgrad", self.amsgrad);
  field("maximize", self.maximize);
}
}  // namespace detail

struct BRIGADE_API AdamOptions {
  double lr = 1e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 0;                      // >= 0
  bool amsgrad = false;                         // divides by the largest mean square so far
  bool maximize = false;                        // climbs instead of descending

  static constexpr const char* kName = "adam";
  static constexpr std::array<const char*, 3> kSlots{"exp_avg", "exp_avg_sq",
                                                     "max_exp_avg_sq"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  void step_on_gpu(const std::vector<SlotStep>& steps) const;
  static void fields(auto& self, auto&& field) { detail::adam_fields(self, field); }
};

using Adam = OptimizerOf<AdamOptions>;

// ---- AdamW ------------------------------------------------------------------------------
//
// AdamW is Adam, except that weight decay shrinks the parameter itself, not the gradient.

struct BRIGADE_API AdamWOptions {
  double lr = 1e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 1e-2;                   // >= 0
  bool amsgrad = false;                         // divides by the largest mean square so far
  bool maximize = false;                        // climbs instead of descending

  static constexpr const char* kName = "adamw";
  static constexpr std::array<const char*, 3> kSlots{"exp_avg", "exp_avg_sq",
                                                     "max_exp_avg_sq"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  void step_on_gpu(const std::vector<SlotStep>& steps) const;
  static void fields(auto& self, auto&& field) { detail::adam_fields(self, field); }
};

using AdamW = OptimizerOf<AdamWOptions>;

// ---- Adamax -----------------------------------------------------------------------------
//
// Adamax is Adam with the largest magnitude in place of the mean square.

struct BRIGADE_API AdamaxOptions {
  double lr = 2e-3;                             // >= 0
  std::pair<double, double> betas{0.9, 0.999};  // each >= 0 and < 1
  double eps = 1e-8;                            // >= 0
  double weight_decay = 0;                      // >= 0
  bool maximize = false;                        // climbs instead of descending

  static constexpr const char* kName = "adamax";
  static constexpr std::array<const char*, 2> kSlots{"exp_avg", "exp_inf"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) { detail::adam_fields(self, field); }
};

using Adamax = OptimizerOf<AdamaxOptions>;

// ---- Adagrad ----------------------------------------------------------------------------
//
// Steps shrink with the sum of all squared gradients.

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

// ---- Adadelta ---------------------------------------------------------------------------
//
// Steps are in proportion to the recent changes.

struct BRIGADE_API AdadeltaOptions {
  double lr = 1.0;          // >= 0
  double rho = 0.9;         // 0 to 1
  double eps = 1e-6;        // >= 0
  double weight_decay = 0;  // >= 0
  bool maximize = false;    // climbs instead of descending

  static constexpr const char* kName = "adadelta";
  static constexpr std::array<const char*, 2> kSlots{"square_avg", "acc_delta"};
  void check() const;
  void step(at::Tensor& parameter, const at::Tensor& gradient, Slots& slots) const;
  static void fields(auto& self, auto&& field) {
    field("lr", self.lr);
    field("rho", self.rho);
    field("eps", self.eps);
    field("weight_decay", self.weight_decay);
    field("maximize", self.maximize);
  }
};

using Adadelta = OptimizerOf<AdadeltaOptions>;

// ---- RMSprop ----------------------------------------------------------------------------
//
// RMSprop, with momentum or centered where the options say so.

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

// ---- Rprop ------------------------------------------------------------------------------
//
// Only the gradient's sign counts; each element has its own step size.

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

// ---- Learning rates by step -------------------------------------------------------------
//
// A schedule is a function of the step's number without state, so a resumed run needs only
// the step in its checkpoint.
//
//   const auto rate = optim::warm_up(500, optim::cosine(0.1, 20'000));
//   for (int64_t step = first; step < last; ++step) {
//     rate.apply(optimizer, step);
//     …
//   }

class BRIGADE_API Schedule {
 public:
  // Makes a schedule of your own: `rate` gives the rate of each step, from 0 on.
  explicit Schedule(std::function<double(int64_t step)> rate);
  // Throws ConfigError for a step below 0.
  double operator()(int64_t step) const;

  // Sets the optimizer's rate to that of `step`: in all groups of a torch::optim optimizer,
  // by set_lr in any other, ZeRO's too.
  void apply(torch::optim::Optimizer& optimizer, int64_t step) const;
  template <class T>
  requires requires(T& optimizer) { optimizer.set_lr(0.1); }
  void apply(T& optimizer, int64_t step) const { optimizer.set_lr((*this)(step)); }

 private:
  std::function<double(int64_t step)> rate_;
};

// Rates must be finite and 0 or more, numbers of steps 1 or more: ConfigError.

BRIGADE_API Schedule constant(double lr);
// Rises evenly for `steps` steps to the first rate of `then`, which follows. The first step
// has 1 / (steps + 1) of that rate.
BRIGADE_API Schedule warm_up(int64_t steps, Schedule then);
// Falls from lr to final_lr in `steps` steps, along half a cosine, and stays there.
BRIGADE_API Schedule cosine(double lr, int64_t steps, double final_lr = 0);
// Multiplies the rate by gamma after every `every` steps.
BRIGADE_API Schedule step_decay(double lr, int64_t every, double gamma = 0.1);

struct OneCycleOptions {
  double rising = 0.3;         // the share of the steps in which the rate rises; 0 to 1
  double start_divisor = 25;   // the first rate is max_lr / start_divisor; > 0
  double final_divisor = 1e4;  // the last one is the first / final_divisor; > 0
};
// Rises to max_lr and falls nearly to 0, both along half a cosine, as torch's OneCycleLR.
BRIGADE_API Schedule one_cycle(double max_lr, int64_t steps,
                               const OneCycleOptions& options = {});

}  // namespace brigade::optim
