// torch's optimizers keep a state for each parameter, in types of their own. Each type's
// fields are listed here once; one visitor writes them, another reads them.
#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <charconv>

#include "brigade/checkpoint.h"
#include "checkpoint/named.h"

namespace brigade {
namespace {

using torch::optim::Optimizer;
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

struct Kind {
  const char* name;
  bool (*is)(const Optimizer&);
  void (*options)(OptimizerOptions&, Fields&);
  void (*state)(OptimizerParamState&, Fields&);
  std::unique_ptr<OptimizerParamState> (*fresh)();
};

template <class O, class Options, class State>
constexpr Kind kind(const char* name) {
  return {
      name, [](const Optimizer& o) { return dynamic_cast<const O*>(&o) != nullptr; },
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

const Kind& kind_of(const Optimizer& optimizer) {
  for (const Kind& kind : kKinds)
    if (kind.is(optimizer)) return kind;
  throw ConfigError(
      "optimizer_part knows torch::optim's SGD, Adam, AdamW, RMSprop and Adagrad; for "
      "another one make a CheckpointPart of your own");
}

// ---- the visitors -----------------------------------------------------------------------

class Writer : public Fields {
 public:
  Writer(PartState& out, std::string prefix) : out_(out), prefix_(std::move(prefix)) {}
  void field(const char* name, double& value) override {
    char text[64];  // the shortest that reads back as the same number
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
  PartState& out_;
  std::string prefix_;
};

class Reader : public Fields {
 public:
  // `like`: the parameter that tensors must look like; options have none.
  Reader(const PartState& in, std::string prefix, at::Tensor like = {})
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
    check_like("state", prefix_ + name, like_, found->second);
    value = found->second.to(like_.device());
  }

 private:
  [[noreturn]] void refuse(const char* name, const std::string& text) const {
    throw CheckpointError("its value '" + prefix_ + name + "' is '" + text + "'");
  }
  const std::string& text(const char* name) const {
    const auto found = in_.values.find(prefix_ + name);
    if (found == in_.values.end())
      throw CheckpointError("its value '" + prefix_ + name + "' is not there");
    return found->second;
  }
  template <class T>
  void number(const char* name, T& value) const {
    const std::string& text = this->text(name);
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) refuse(name, text);
  }

  const PartState& in_;
  std::string prefix_;
  at::Tensor like_;
};

// ---- the part ---------------------------------------------------------------------------

std::string group_prefix(size_t index) { return "group." + std::to_string(index) + "/"; }
std::string state_prefix(const std::string& parameter) {
  return "state/" + parameter + "/";
}

// The names of each group's parameters, in order.
std::vector<std::vector<std::string>> names_in(Optimizer& optimizer,
                                               torch::nn::Module& model) {
  std::map<const void*, std::string> names;
  for (const auto& [name, tensor] : named_parameters(model))
    names[tensor.unsafeGetTensorImpl()] = name;
  std::vector<std::vector<std::string>> groups;
  for (auto& group : optimizer.param_groups()) {
    auto& of_group = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end())
        throw ConfigError("the optimizer has a parameter, " + looks_like(parameter) +
                          ", that is not one of the model's");
      of_group.push_back(found->second);
    }
  }
  return groups;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + name;
  return text;
}

PartState save_optimizer(Optimizer& optimizer, torch::nn::Module& model) {
  const Kind& kind = kind_of(optimizer);
  const auto names = names_in(optimizer, model);
  PartState out;
  out.values["kind"] = kind.name;
  out.values["groups"] = std::to_string(names.size());
  for (size_t g = 0; g < names.size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    out.values[group_prefix(g) + "parameters"] = joined(names[g]);
    Writer writer(out, group_prefix(g));
    kind.options(group.options(), writer);
    for (size_t p = 0; p < names[g].size(); ++p) {
      const auto found = optimizer.state().find(group.params()[p].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const std::string prefix = state_prefix(names[g][p]);
      out.values[prefix] = "";  // there is a state, if one without values
      Writer state_writer(out, prefix);
      kind.state(*found->second, state_writer);
    }
  }
  return out;
}

void check_value(const PartState& saved, const std::string& key, const std::string& here) {
  const auto found = saved.values.find(key);
  const std::string there = found == saved.values.end() ? "nothing" : found->second;
  if (there != here)
    throw CheckpointError(key + " is '" + there + "' in the checkpoint, but '" + here +
                          "' here");
}

std::function<void()> load_optimizer(Optimizer& optimizer, torch::nn::Module& model,
                                     const PartState& saved) {
  const Kind& kind = kind_of(optimizer);
  const auto names = names_in(optimizer, model);
  check_value(saved, "kind", kind.name);
  check_value(saved, "groups", std::to_string(names.size()));
  using States = std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>>;
  auto states = std::make_shared<States>();
  auto options = std::make_shared<std::vector<std::unique_ptr<OptimizerOptions>>>();
  for (size_t g = 0; g < names.size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    check_value(saved, group_prefix(g) + "parameters", joined(names[g]));
    options->push_back(group.options().clone());
    Reader reader(saved, group_prefix(g));
    kind.options(*options->back(), reader);
    for (size_t p = 0; p < names[g].size(); ++p) {
      const at::Tensor& parameter = group.params()[p];
      const std::string prefix = state_prefix(names[g][p]);
      if (!saved.values.contains(prefix)) continue;
      auto state = kind.fresh();
      Reader state_reader(saved, prefix, parameter);
      kind.state(*state, state_reader);
      states->emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
    }
  }
  return [&optimizer, states, options] {
    optimizer.state().clear();
    for (auto& [key, state] : *states) optimizer.state()[key] = std::move(state);
    for (size_t g = 0; g < options->size(); ++g)
      optimizer.param_groups()[g].set_options(std::move((*options)[g]));
  };
}

}  // namespace

CheckpointPart optimizer_part(torch::optim::Optimizer& optimizer, torch::nn::Module& model,
                              std::string name) {
  names_in(optimizer, model);
  kind_of(optimizer);
  CheckpointPart part{.name = std::move(name)};
  part.save = [&] { return save_optimizer(optimizer, model); };
  part.load = [&](SavedPart saved) {
    return load_optimizer(optimizer, model, saved.states.at(0));
  };
  return part;
}

}  // namespace brigade
