#include "brigade/hooks.h"
#include "brigade/optimizer_in_backward.h"
#include "optim/step_hook.h"

namespace brigade::optim {
namespace {

class Attachments : public InBackward {
 public:
  Attachments(bool owns_gradients, Plan plan, std::vector<at::Tensor> parameters)
      : owns_gradients_(owns_gradients),
        plan_(std::make_shared<const Plan>(std::move(plan))),
        parameters_(std::move(parameters)) {}

  std::shared_ptr<Hook> behind(std::shared_ptr<Hook> hook) override {
    if (!hook) hook = make_hook("allreduce");
    return std::make_shared<StepHook>(std::move(hook), plan_, owns_gradients_);
  }
  const std::vector<at::Tensor>& parameters() const override { return parameters_; }
  const Plan& plan() const { return *plan_; }

 private:
  const bool owns_gradients_;
  const std::shared_ptr<const Plan> plan_;
  const std::vector<at::Tensor> parameters_;
};

// Returns those of `wanted` (empty: all) that the model trains.
std::vector<std::pair<std::string, at::Tensor>> chosen(
    const DdpCore& core, const std::vector<at::Tensor>& wanted) {
  std::set<const c10::TensorImpl*> set;
  for (const at::Tensor& parameter : wanted) set.insert(parameter.unsafeGetTensorImpl());
  std::vector<std::pair<std::string, at::Tensor>> chosen;
  for (size_t i = 0; i < core.parameters().size(); ++i) {
    const at::Tensor& parameter = core.parameters()[i];
    if (wanted.empty() || set.contains(parameter.unsafeGetTensorImpl())) {
      chosen.emplace_back(core.parameter_names()[i], parameter);
    }
  }
  if (chosen.empty()) {
    throw ConfigError("apply_optimizer_in_backward: none of the " +
                      std::to_string(wanted.size()) +
                      " parameters is one that DistributedDataParallel trains");
  }
  return chosen;
}

}  // namespace

namespace detail {

std::shared_ptr<Hook> hook_then(std::shared_ptr<Hook> hook, Stepper stepper,
                                const std::vector<at::Tensor>& parameters,
                                const StepOptions& options) {
  check(options);
  if (!hook)
    throw ConfigError(
        "hook_then_optimizer: the hook is null; make_hook(\"allreduce\") is the plain one");
  auto plan = std::make_shared<Plan>();
  plan->attached.push_back({std::move(stepper), options});
  plan->all = parameters.empty();
  for (const at::Tensor& parameter : parameters) {
    plan->of[parameter.unsafeGetTensorImpl()] = 0;
  }
  return std::make_shared<StepHook>(std::move(hook), std::move(plan),
                                    /*owns_gradients=*/false);
}

void attach(DdpCore& core, Stepper stepper, const std::vector<at::Tensor>& parameters,
            const StepOptions& options) {
  check(options);
  Plan plan;
  std::vector<at::Tensor> all;
  if (auto* before = dynamic_cast<Attachments*>(core.in_backward().get())) {
    plan = before->plan();
    all = before->parameters();
  }
  plan.attached.push_back({std::move(stepper), options});
  for (const auto& [name, parameter] : chosen(core, parameters)) {
    if (!plan.of.emplace(parameter.unsafeGetTensorImpl(), plan.attached.size() - 1)
             .second) {
      throw ConfigError("apply_optimizer_in_backward: parameter '" + name +
                        "' has an optimizer already");
    }
    all.push_back(parameter);
  }
  core.set_in_backward(std::make_shared<Attachments>(
      !core.options().gradient_as_bucket_view, std::move(plan), std::move(all)));
}

}  // namespace detail
}  // namespace brigade::optim
