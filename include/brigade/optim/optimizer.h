// SPDX-License-Identifier: BSD-3-Clause
// Functional optimizers: they step one parameter at a time, with a gradient that is handed
// to them, and so can work while other gradients are still on their way.
//
//   brigade::optim::Adam adam({.lr = 1e-3});
//   adam.step_param(parameter, gradient);
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
#include "brigade/export.h"
#include "brigade/named_state.h"
#include "brigade/optim/functional.h"

namespace brigade::optim {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// An optimizer's state as a checkpoint stores it. A tensor's key is the parameter's name, a
// dot and the slot's name: "layer.weight.exp_avg". The values are the number of steps of
// each parameter, and the options.
using OptimizerState = NamedState;

// What an optimizer keeps for one parameter.
struct Slots {
  at::Tensor parameter = {};
  int64_t step = 0;
  std::vector<at::Tensor> tensors =
      {};  // by the optimizer's slot names; undefined until used

  // The tensor of that number, made with `fill` in every element if it is not there yet.
  at::Tensor& tensor(size_t index, double fill = 0);
};

// A parameter's step that is being done, with the parameter's dtype and layout.
struct SlotStep {
  at::Tensor parameter = {};
  at::Tensor gradient = {};
  Slots* slots = nullptr;
};

// step_param may run for different parameters at once, in different threads; nothing else
// may run meanwhile. State and options are kept by parameter, whatever bucket it is in.
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
  // takes one pass over memory; everything else takes ATen's operations.
  void step_param(const at::Tensor& parameter, const at::Tensor& gradient);
  // The same for several, to the same bits. Adam, AdamW and SGD do it in one kernel on a
  // GPU.
  void step_params(const std::vector<ParameterStep>& steps);

  // Sets the learning rate from the next step on, for all parameters without options of
  // their own.
  virtual void set_lr(double lr) = 0;
  // The same for these parameters only.
  virtual void set_lr(const std::vector<at::Tensor>& parameters, double lr) = 0;

  // Tensors are shared with the optimizer, not copied. Parameters that never stepped have
  // nothing in it.
  OptimizerState state(const NamedParameters& parameters) const;
  // Replaces the state of these parameters, and all options. Throws ConfigError, and
  // changes nothing, if `state` is of another optimizer, lacks something or has other
  // shapes or dtypes.
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
  // All at once, on a GPU. False, and nothing is changed, if it can't.
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

  mutable std::mutex mutex_;  // guards the table, not what is in it
  std::unordered_map<const c10::TensorImpl*, Slots> table_;
};

namespace detail {

// Options as text, both ways. parse: the value under `key`, or ConfigError.
BRIGADE_API std::string text_of(double value);
BRIGADE_API std::string text_of(bool value);
BRIGADE_API void parse(const std::map<std::string, std::string>& values,
                       const std::string& key, double& value);
BRIGADE_API void parse(const std::map<std::string, std::string>& values,
                       const std::string& key, bool& value);
// Throws ConfigError unless `holds`: "SGD: lr is -1, but must be …".
BRIGADE_API void require(bool holds, const char* optimizer, const char* field, double value,
                         const char* rule);

}  // namespace detail

// An optimizer is its options: an aggregate with a field `lr` and these members.
// clang-format off
//   kName         what messages, checkpoints and make_optimizer call the optimizer
//   kSlots        an array with the names of the tensors that it keeps for a parameter
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

  // For parameters without options of their own.
  const Options& options() const { return options_; }
  const Options& options(const at::Tensor& parameter) const {
    const auto found = own_.find(parameter.unsafeGetTensorImpl());
    return found == own_.end() ? options_ : found->second;
  }
  // From the next step on. Throws ConfigError for bad ones.
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

}  // namespace brigade::optim
