// ZeRO: an optimizer whose state is spread over the ranks, and the hooks that step it.
#include "brigade/zero.h"

#include <ATen/ATen.h>

#include "bindings.h"
#include "native_hook.h"
#include "zero/zero_groups.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using optim::NamedParameters;
using Zero = optim::ZeroRedundancyOptimizer;
using NoGil = py::call_guard<py::gil_scoped_release>;
using Groups = std::vector<std::pair<NamedParameters, std::string>>;

std::vector<optim::ZeroGroup> made_of(const Groups& groups) {
  std::vector<optim::ZeroGroup> made;
  for (const auto& [parameters, spec] : groups) {
    made.push_back({parameters, optim::ShardFactory(spec)});
  }
  return made;
}

std::shared_ptr<Zero> make(c10d::ProcessGroup& group, const std::string& device,
                           const Groups& groups, bool views) {
  auto made = made_of(groups);
  py::gil_scoped_release unlocked;
  return std::make_shared<Zero>(std::move(made), adopt(group, c10::Device(device).type()),
                                optim::ZeroOptions{.parameters_as_bucket_view = views});
}

std::shared_ptr<optim::ZeroHook> make_hook(c10d::ProcessGroup& group,
                                           const std::string& device, const Groups& groups,
                                           bool owns_gradients) {
  auto made = made_of(groups);
  py::gil_scoped_release unlocked;
  return optim::make_zero_hook(std::move(made), adopt(group, c10::Device(device).type()),
                               owns_gradients);
}

// Binds what both forms have.
template <class Class>
void bind_sharded(Class& bound) {
  using T = typename Class::type;
  bound
      .def(
          "consolidate",
          [](const T& zero, int to) { return parts_of(zero.consolidate(to)); }, NoGil())
      .def(
          "load_whole",
          [](T& zero, std::map<std::string, at::Tensor> tensors,
             std::map<std::string, std::string> values) {
            zero.load_consolidated({std::move(tensors), std::move(values)});
          },
          NoGil())
      .def("set_lr", [](T& zero, double lr) { zero.set_lr(lr); })
      .def("set_lr", [](T& zero, size_t group, double lr) { zero.set_lr(group, lr); })
      .def(
          "lr", [](const T& zero, size_t group) { return zero.lr(group); },
          py::arg("group") = 0)
      .def_property_readonly("state_bytes",
                             [](const T& zero) { return zero.state_bytes(); });
}

}  // namespace

void bind_zero(py::module_& m) {
  py::class_<Zero, std::shared_ptr<Zero>> zero(m, "ZeroRedundancyOptimizer");
  zero.def(py::init(&make))
      .def(
          "add_group",
          [](Zero& zero, const NamedParameters& parameters, const std::string& spec) {
            zero.add_group({parameters, optim::ShardFactory(spec)});
          },
          NoGil())
      .def("step", &Zero::step, NoGil())
      .def("owner", &Zero::owner)
      .def("share", &Zero::share)
      .def_property_readonly("fingerprint", &Zero::fingerprint);
  bind_sharded(zero);
  py::class_<optim::ZeroHook, Hook, std::shared_ptr<optim::ZeroHook>> hook(m, "ZeroHook");
  hook.def(py::init(&make_hook));
  bind_sharded(hook);
  m.def("zero_step", &optim::make_zero_step, py::arg("hook"), py::arg("zero"),
        py::arg("interleaved"), py::arg("shard_buckets"));
}

}  // namespace brigade::python
