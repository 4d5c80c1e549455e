#include "optim/torch_state.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>
#include <charconv>

namespace brigade::optim {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

class Fields {
 public:
  virtual ~Fields() = default;
  virtual void field(const char* name, double& value) = 0;
  virtual void field(const char* name, int64_t& value) = 0;
  virtual void field(const char* name, bool& value) = 0;
  virtual void field(const char* name, at::Tensor& value) = 0;
};

namespace {

// ---- the fields of each type ------------------------------------------------------------

void visit(torch::optim::SGDOptions& o, Fields& f) {
  f.field("lr", o.lr());
  f.field("momentum", o.momentum());
  f.field("dampening", o.dampening());
  f.field("weight_decay", o.weight_decay());
  f.field("nesterov", o.nesterov());
}
void visit(torch::optim::SGDParamState& s, Fields& f) {
  f.field("momentum_buffer", s.momentum_buffer());
}

template <class Options>
void visit_adam_options(Options& o, Fields& f) {
  f.field("lr", o.lr());
  f.field("beta1", std::get<0>(o.betas()));
  f.field("beta2", std::get<1>(o.betas()));
  f.field("eps", o.eps());
  f.field("weight_decay", o.weight_decay());
  f.field("amsgrad", o.amsgrad());
}
template <class State>
void visit_adam_state(State& s, Fields& f) {
  f.field("step", s.step());
  f.field("exp_avg", s.exp_avg());
  f.field("exp_avg_sq", s.exp_avg_sq());
  f.field("max_exp_avg_sq", s.max_exp_avg_sq());
}
void visit(torch::optim::AdamOptions& o, Fields& f) { visit_adam_options(o, f); }
void visit(torch::optim::AdamParamState& s, Fields& f) { visit_adam_state(s, f); }
void visit(torch::optim::AdamWOptions& o, Fields& f) { visit_adam_options(o, f); }
void visit(torch::optim::AdamWParamState& s, Fields& f) { visit_adam_state(s, f); }

void visit(torch::optim::RMSpropOptions& o, Fields& f) {
  f.field("lr", o.lr());
  f.field("alpha", o.alpha());
  f.field("eps", o.eps());
  f.field("weight_decay", o.weight_decay());
  f.field("momentum", o.momentum());
  f.field("centered", o.centered());
}
void visit(torch::optim::RMSpropParamState& s, Fields& f) {
  f.field("step", s.step());
  f.field("square_avg", s.square_avg());
  f.field("momentum_buffer", s.momentum_buffer());
  f.field("grad_avg", s.grad_avg());
}

void visit(torch::optim::AdagradOptions& o, Fields& f) {
  f.field("lr", o.lr());
  f.field("lr_decay", o.lr_decay());
  f.field("weight_decay", o.weight_decay());
  f.field("initial_accumulator_value", o.initial_accumulator_value());
  f.field("eps", o.eps());
}
void visit(torch::optim::AdagradParamState& s, Fields& f) {
  f.field("step", s.step());
  f.field("sum", s.sum());
}

// ---- the types --------------------------------------------------------------------------

template <class O, class Options, class State>
constexpr TorchKind kind(const char* name) {
  return {
      name,
      [](const torch::optim::Optimizer& o) {
        return dynamic_cast<const O*>(&o) != nullptr;
      },
      [](OptimizerOptions& o, Fields& f) { visit(static_cast<Options&>(o), f); },
      [](OptimizerParamState& s, Fields& f) { visit(static_cast<State&>(s), f); },
      []() -> std::unique_ptr<OptimizerParamState> { return std::make_unique<State>(); }};
}

namespace to = torch::optim;
constexpr std::array kKinds{
    kind<to::SGD, to::SGDOptions, to::SGDParamState>("SGD"),
    kind<to::Adam, to::AdamOptions, to::AdamParamState>("Adam"),
    kind<to::AdamW, to::AdamWOptions, to::AdamWParamState>("AdamW"),
    kind<to::RMSprop, to::RMSpropOptions, to::RMSpropParamState>("RMSprop"),
    kind<to::Adagrad, to::AdagradOptions, to::AdagradParamState>("Adagrad"),
};

// ---- the visitors -----------------------------------------------------------------------

class Writer : public Fields {
 public:
  Writer(OptimizerState& out, std::string prefix) : out_(out), prefix_(std::move(prefix)) {}
  void field(const char* name, double& value) override {
    char text[64];  // the shortest text that reads back as the same number
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    out_.values[prefix_ + name] = std::string(text, end);
  }
  void field(const char* name, int64_t& value) override {
    out_.values[prefix_ + name] = std::to_string(value);
  }
  void field(const char* name, bool& value) override {
    out_.values[prefix_ + name] = value ? "true" : "false";
  }
  void field(const char* name, at::Tensor& value) override {
    if (value.defined()) out_.tensors[prefix_ + name] = value;
  }

 private:
  OptimizerState& out_;
  std::string prefix_;
};

class Reader : public Fields {
 public:
  // `like`: the parameter whose shape and dtype tensors must have; options have none.
  Reader(const OptimizerState& in, std::string prefix, at::Tensor like = {})
      : in_(in), prefix_(std::move(prefix)), like_(std::move(like)) {}
  void field(const char* name, double& value) override { number(name, value); }
  void field(const char* name, int64_t& value) override { number(name, value); }
  void field(const char* name, bool& value) override {
    const std::string& text = this->text(name);
    if (text != "true" && text != "false") refuse(name, text);
    value = text == "true";
  }
  void field(const char* name, at::Tensor& value) override {
    const auto found = in_.tensors.find(prefix_ + name);
    if (found == in_.tensors.end()) {
      value = at::Tensor();
      return;
    }
    check_shape(prefix_ + name, found->second);
    value = found->second.to(like_.device());
  }

 private:
  [[noreturn]] void refuse(const char* name, const std::string& text) const {
    throw ConfigError("its value '" + prefix_ + name + "' is '" + text + "'");
  }
  void check_shape(const std::string& name, const at::Tensor& saved) const {
    if (saved.sizes() == like_.sizes() && saved.scalar_type() == like_.scalar_type())
      return;
    throw ConfigError(c10::str("state '", name, "' is ", saved.scalar_type(), " ",
                               saved.sizes(), ", but the parameter is ",
                               like_.scalar_type(), " ", like_.sizes()));
  }
  const std::string& text(const char* name) const {
    const auto found = in_.values.find(prefix_ + name);
    if (found == in_.values.end())
      throw ConfigError("its value '" + prefix_ + name + "' is not there");
    return found->second;
  }
  template <class T>
  void number(const char* name, T& value) const {
    const std::string& text = this->text(name);
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) refuse(name, text);
  }

  const OptimizerState& in_;
  std::string prefix_;
  at::Tensor like_;
};

}  // namespace

const TorchKind* torch_kind(const torch::optim::Optimizer& optimizer) {
  for (const TorchKind& kind : kKinds)
    if (kind.is(optimizer)) return &kind;
  return nullptr;
}

void write_options(const TorchKind& kind, OptimizerOptions& options,
                   const std::string& prefix, OptimizerState& out) {
  Writer writer(out, prefix);
  kind.options(options, writer);
}
void read_options(const TorchKind& kind, const OptimizerState& in,
                  const std::string& prefix, OptimizerOptions& options) {
  Reader reader(in, prefix);
  kind.options(options, reader);
}

void write_state(const TorchKind& kind, OptimizerParamState& state,
                 const std::string& prefix, OptimizerState& out) {
  out.values[prefix] = "";  // marks a state that may have no values
  Writer writer(out, prefix);
  kind.state(state, writer);
}
std::unique_ptr<OptimizerParamState> read_state(const TorchKind& kind,
                                                const OptimizerState& in,
                                                const std::string& prefix,
                                                const at::Tensor& parameter) {
  if (!in.values.contains(prefix)) return nullptr;
  auto state = kind.fresh();
  Reader reader(in, prefix, parameter);
  kind.state(*state, reader);
  return state;
}

}  // namespace brigade::optim
