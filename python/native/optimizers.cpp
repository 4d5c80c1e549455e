// Functional optimizers, and hooks that step after another hook.
#include <ATen/ATen.h>

#include "bindings.h"
#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "optim/step_hook.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using optim::NamedParameters;
using optim::Optimizer;
using NoGil = py::call_guard<py::gil_scoped_release>;

// Is released with the GIL, wherever the last hook that uses it ends.
std::shared_ptr<py::object> shared(py::object object) {
  return std::shared_ptr<py::object>(new py::object(std::move(object)),
                                     [](py::object* last) {
                                       py::gil_scoped_acquire locked;
                                       delete last;
                                     });
}

// `optimizer`: one of ours, or any object with step_param(parameter, gradient).
optim::Stepper stepper_of(const py::object& optimizer) {
  if (py::isinstance<Optimizer>(optimizer)) {
    return optim::stepper_of(optimizer.cast<std::shared_ptr<Optimizer>>());
  }
  if (!py::hasattr(optimizer, "step_param")) {
    throw ConfigError(
        "an optimizer for the backward pass needs step_param(parameter, "
        "gradient), and " +
        py::str(py::type::of(optimizer)).cast<std::string>() + " has none");
  }
  optim::Stepper stepper;
  stepper.description =
      py::str(py::type::of(optimizer).attr("__qualname__")).cast<std::string>();
  stepper.step = [held = shared(optimizer)](const at::Tensor& parameter,
                                            const at::Tensor& gradient) {
    py::gil_scoped_acquire locked;
    try {
      held->attr("step_param")(parameter, gradient);
    } catch (const py::error_already_set& error) {
      throw Error(std::string("step_param: ") + error.what());
    }
  };
  return stepper;
}

std::shared_ptr<Hook> stepping(std::shared_ptr<Hook> hook, const py::object& optimizer,
                               const std::vector<at::Tensor>& parameters, bool all,
                               bool owns_gradients, std::optional<double> clip_value) {
  const optim::StepOptions options{.clip_grad_value = clip_value};
  optim::check(options);
  auto plan = std::make_shared<optim::Plan>();
  plan->attached.push_back({stepper_of(optimizer), options});
  plan->all = all;
  for (const at::Tensor& parameter : parameters) {
    plan->of[parameter.unsafeGetTensorImpl()] = 0;
  }
  return std::make_shared<optim::StepHook>(std::move(hook), std::move(plan),
                                           owns_gradients);
}

}  // namespace

void bind_optimizers(py::module_& m) {
  py::class_<Optimizer, std::shared_ptr<Optimizer>>(m, "Optimizer")
      .def_property_readonly("name", &Optimizer::name)
      .def_property_readonly("fingerprint", &Optimizer::fingerprint)
      .def("__repr__",
           [](const Optimizer& optimizer) {
             return "<brigade.optim " + optimizer.fingerprint() + ">";
           })
      .def("step_param", &Optimizer::step_param, NoGil())
      .def("set_lr", py::overload_cast<double>(&Optimizer::set_lr))
      .def("set_lr",
           py::overload_cast<const std::vector<at::Tensor>&, double>(&Optimizer::set_lr))
      .def("state",
           [](const Optimizer& optimizer, const NamedParameters& parameters) {
             return parts_of(optimizer.state(parameters));
           })
      .def(
          "load_state",
          [](Optimizer& optimizer, std::map<std::string, at::Tensor> tensors,
             std::map<std::string, std::string> values, const NamedParameters& parameters) {
            optimizer.load_state({std::move(tensors), std::move(values)}, parameters);
          })
      .def("reset", &Optimizer::reset);
  m.def("make_optimizer",
        [](const std::string& spec) { return optim::make_optimizer(spec); });
  m.def("optimizer_names", [] {
    const auto names = optim::optimizer_names();
    return std::vector<std::string>(names.begin(), names.end());
  });
  m.def("stepping", &stepping, py::arg("hook"), py::arg("optimizer"), py::arg("parameters"),
        py::arg("all"), py::arg("owns_gradients") = false,
        py::arg("clip_grad_value") = std::nullopt);
  // For a Reducer that was told to write no gradients, which cannot be undone.
  m.def("writing_gradients", [](std::shared_ptr<Hook> hook) -> std::shared_ptr<Hook> {
    return std::make_shared<optim::StepHook>(
        std::move(hook), std::make_shared<optim::Plan>(), /*owns_gradients=*/true);
  });
}

}  // namespace brigade::python
