#include "elastic/periodic_mean.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "brigade/error.h"
#include "brigade/local_sgd.h"

namespace brigade::elastic {
namespace {

void check_apart(const char* what, double value, bool good, const char* rule) {
  if (good) return;
  throw ConfigError(std::string("ElasticTraining: ") + what + " is " +
                    std::to_string(value) + "; it must be " + rule);
}

// Lists tensors by the names under which they are saved.
std::vector<std::pair<std::string, at::Tensor>> kept(const optim::OuterParameter& of) {
  std::vector<std::pair<std::string, at::Tensor>> all{{"global." + of.name, of.global}};
  if (of.velocity.defined()) all.emplace_back("velocity." + of.name, of.velocity);
  return all;
}

}  // namespace

PeriodicMean::PeriodicMean(const std::vector<at::Tensor>& parameters,
                           const ElasticLocalSGD& options)
    : options_(options), parameters_(parameters) {
  check_apart("period", static_cast<double>(options.period), options.period >= 1,
              "1 or more");
  check_apart("outer_lr", options.outer_lr, options.outer_lr > 0, "more than 0");
  check_apart("outer_momentum", options.outer_momentum,
              options.outer_momentum >= 0 && options.outer_momentum < 1,
              "0 to less than 1");
  // With these values an outer step is only the mean.
  if (options.outer_lr == 1 && options.outer_momentum == 0) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    outer_.push_back(optim::OuterParameter::make(std::to_string(i), parameters_[i],
                                                 options.outer_momentum));
  }
}

void PeriodicMean::meet(const ProcessGroup& group, int64_t step) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> means;
  for (const at::Tensor& parameter : parameters_)
    means.push_back(parameter.detach().clone());
  average_parameters(means, group);
  for (size_t i = 0; i < means.size(); ++i) {
    if (outer_.empty()) {
      parameters_[i].copy_(means[i]);
      continue;
    }
    outer_[i].step(outer_[i].global - means[i], options_.outer_lr, options_.outer_momentum);
    outer_[i].reset_local();
  }
  met_ = step;
}

CheckpointPart PeriodicMean::part() {
  CheckpointPart part{.name = "meetings"};
  part.save = [this] {
    PartState state;
    state.values["met"] = std::to_string(met_);
    for (const optim::OuterParameter& each : outer_)
      for (const auto& [key, tensor] : kept(each)) state.tensors[key] = tensor;
    return state;
  };
  part.load = [this](SavedPart saved) {
    PartState state = std::move(saved.states.at(0));
    for (const optim::OuterParameter& each : outer_) {
      for (const auto& [key, tensor] : kept(each)) {
        const auto found = state.tensors.find(key);
        if (found == state.tensors.end() || found->second.sizes() != tensor.sizes())
          throw CheckpointError("saved with other parameters, or another outer optimizer");
      }
    }
    return [this, state = std::move(state)] {
      at::NoGradGuard no_grad;
      met_ = std::stoll(state.values.at("met"));
      for (const optim::OuterParameter& each : outer_)
        for (auto& [key, tensor] : kept(each)) tensor.copy_(state.tensors.at(key));
    };
  };
  return part;
}

std::string PeriodicMean::describe() const {
  return "apart, period " + std::to_string(options_.period) + ", outer lr " +
         std::to_string(options_.outer_lr) + ", outer momentum " +
         std::to_string(options_.outer_momentum);
}

}  // namespace brigade::elastic
