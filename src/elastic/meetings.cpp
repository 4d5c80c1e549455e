#include "elastic/meetings.h"

#include <ATen/ATen.h>

#include "brigade/error.h"
#include "brigade/local_sgd/model_averager.h"

namespace brigade::elastic {
namespace {

void check_apart(const char* what, double value, bool good, const char* rule) {
  if (good) return;
  throw ConfigError(std::string("ElasticTraining: ") + what + " is " +
                    std::to_string(value) + "; it must be " + rule);
}

}  // namespace

Meetings::Meetings(const std::vector<at::Tensor>& parameters, const ElasticApart& options)
    : options_(options), parameters_(parameters) {
  check_apart("period", static_cast<double>(options.period), options.period >= 1,
              "1 or more");
  check_apart("outer_lr", options.outer_lr, options.outer_lr > 0, "more than 0");
  check_apart("outer_momentum", options.outer_momentum,
              options.outer_momentum >= 0 && options.outer_momentum < 1,
              "0 to less than 1");
  if (!outer()) return;
  for (const at::Tensor& parameter : parameters_) {
    global_.push_back(parameter.detach().clone());
    velocity_.push_back(at::zeros_like(global_.back()));
  }
}

void Meetings::meet(const ProcessGroup& group, int64_t step) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> means;
  for (const at::Tensor& parameter : parameters_)
    means.push_back(parameter.detach().clone());
  average_parameters(means, group);
  for (size_t i = 0; i < means.size(); ++i) {
    if (outer()) {
      const at::Tensor difference = global_[i] - means[i];
      velocity_[i].mul_(options_.outer_momentum).add_(difference);
      global_[i].sub_(difference.add_(velocity_[i], options_.outer_momentum),
                      options_.outer_lr);
      means[i] = global_[i];
    }
    parameters_[i].copy_(means[i]);
  }
  met_ = step;
}

CheckpointPart Meetings::part() {
  CheckpointPart part{.name = "meetings"};
  part.save = [this] {
    PartState state;
    state.values["met"] = std::to_string(met_);
    for (size_t i = 0; i < global_.size(); ++i) {
      state.tensors["global." + std::to_string(i)] = global_[i];
      state.tensors["velocity." + std::to_string(i)] = velocity_[i];
    }
    return state;
  };
  part.load = [this](SavedPart saved) {
    PartState state = std::move(saved.states.at(0));
    const auto has = [&](const std::string& key, const at::Tensor& like) {
      const auto found = state.tensors.find(key);
      return found != state.tensors.end() && found->second.sizes() == like.sizes();
    };
    for (size_t i = 0; i < global_.size(); ++i) {
      if (has("global." + std::to_string(i), global_[i]) &&
          has("velocity." + std::to_string(i), velocity_[i]))
        continue;
      throw CheckpointError("saved with other parameters, or without an outer optimizer");
    }
    return [this, state = std::move(state)] {
      at::NoGradGuard no_grad;
      met_ = std::stoll(state.values.at("met"));
      for (size_t i = 0; i < global_.size(); ++i) {
        global_[i].copy_(state.tensors.at("global." + std::to_string(i)));
        velocity_[i].copy_(state.tensors.at("velocity." + std::to_string(i)));
      }
    };
  };
  return part;
}

std::string Meetings::describe() const {
  return "apart, period " + std::to_string(options_.period) + ", outer lr " +
         std::to_string(options_.outer_lr) + ", outer momentum " +
         std::to_string(options_.outer_momentum);
}

}  // namespace brigade::elastic
