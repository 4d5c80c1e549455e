// ZeRO: an optimizer whose state is spread over the ranks, and the hooks that step it.
#include "brigade/optim/zero.h"

#include <ATen/ATen.h>

#include "bindings.h"
#include "optim/zero_step.h"
#include "reduction.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using optim::NamedParameters;
using optim::OptimizerState;
using Zero = optim::ZeroRedundancyOptimizer;
using NoGil = py::call_guard<py::gil_scoped_release>;
using StateParts =
    std::pair<std::map<std::string, at::Tensor>, std::map<std::string, std::string>>;
using Groups = std::vector<std::pair<NamedParameters, std::string>>;

StateParts parts_of(OptimizerState state) {
  return {std::move(state.tensors), std::move(state.values)};
}

std::shared_ptr<Zero> make(c10d::ProcessGroup& group, const std::string& device,
                           const Groups& groups, bool views) {
  std::vector<optim::ZeroGroup> made;
  for (const auto& [parameters, spec] : groups) {
    made.push_back({parameters, optim::ShardFactory(spec)});
  }
  py::gil_scoped_release unlocked;
  return std::make_shared<Zero>(std::move(made), adopt(group, c10::Device(device).type()),
                                optim::ZeroOptions{.parameters_as_bucket_view = views});
}

}  // namespace

void bind_zero(py::module_& m) {
  py::class_<Zero, std::shared_ptr<Zero>>(m, "ZeroRedundancyOptimizer")
      .def(py::init(&make))
      .def(
          "add_group",
          [](Zero& zero, const NamedParameters& parameters, const std::string& spec) {
            zero.add_group({parameters, optim::ShardFactory(spec)});
          },
          NoGil())
      .def("step", &Zero::step, NoGil())
      .def(
          "consolidate",
          [](const Zero& zero, int to) { return parts_of(zero.consolidate(to)); }, NoGil())
      .def(
          "load_state",
          [](Zero& zero, std::map<std::string, at::Tensor> tensors,
             std::map<std::string, std::string> values) {
            zero.load_state({std::move(tensors), std::move(values)});
          },
          NoGil())
      .def("set_lr", py::overload_cast<double>(&Zero::set_lr))
      .def("set_lr", py::overload_cast<size_t, double>(&Zero::set_lr))
      .def("lr", &Zero::lr, py::arg("group") = 0)
      .def("owner", &Zero::owner)
      .def("share", &Zero::share)
      .def_property_readonly("state_bytes", &Zero::state_bytes)
      .def_property_readonly("fingerprint", &Zero::fingerprint);
  m.def("zero_step", &optim::make_zero_step, py::arg("hook"), py::arg("zero"),
        py::arg("interleaved"));
}

}  // namespace brigade::python
