// Averagers of parameters, local SGD and DiLoCo, for ranks that train locally.
#include <ATen/ATen.h>

#include "bindings.h"
#include "brigade/local_sgd.h"
#include "local_sgd/local_sgd_core.h"
#include "native_hook.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using optim::DiLoCoOptions;
using optim::LocalSGDCore;
using optim::NamedParameters;
using Group = c10d::ProcessGroup;
using Levels = std::vector<std::pair<int64_t, int>>;
using NoGil = py::call_guard<py::gil_scoped_release>;

c10::DeviceType type_of(const std::string& device) { return c10::Device(device).type(); }

std::vector<AveragingLevel> levels_of(const Levels& given) {
  std::vector<AveragingLevel> levels;
  for (const auto& [period, size] : given) levels.push_back({period, size});
  return levels;
}

// The optimizer has stepped before DiLoCo is called.
struct Stepped {
  void step() {}
};

class PythonDiLoCo : public Closeable {
 public:
  PythonDiLoCo(const NamedParameters& parameters, ProcessGroup group, DiLoCoOptions options)
      : diloco_(std::make_unique<optim::DiLoCo>(parameters, stepped_, std::move(group),
                                                std::move(options))) {}
  ~PythonDiLoCo() override { not_open(); }
  void close() override { diloco_.reset(); }
  optim::DiLoCo& operator*() const {
    if (!diloco_) throw Error("this DiLoCo was closed; make another, with its state");
    return *diloco_;
  }

 private:
  Stepped stepped_;
  std::unique_ptr<optim::DiLoCo> diloco_;
};

std::shared_ptr<PythonDiLoCo> make_diloco(Group& group, const std::string& device,
                                          const NamedParameters& parameters,
                                          std::shared_ptr<Hook> hook, int64_t period,
                                          double outer_lr, double outer_momentum,
                                          int64_t fragments, int64_t delay, double mixing,
                                          bool init_sync, double bucket_cap_mb) {
  py::gil_scoped_release unlocked;
  return ending_without_gil(new PythonDiLoCo(parameters, adopt(group, type_of(device)),
                                             {.period = period,
                                              .outer_lr = outer_lr,
                                              .outer_momentum = outer_momentum,
                                              .fragments = fragments,
                                              .delay = delay,
                                              .mixing = mixing,
                                              .hook = std::move(hook),
                                              .init_sync = init_sync,
                                              .bucket_cap_mb = bucket_cap_mb}));
}

void load_diloco(PythonDiLoCo& diloco, StateParts shared, std::vector<StateParts> ranks) {
  std::vector<NamedState> states;
  for (StateParts& each : ranks) states.push_back(state_of(std::move(each)));
  // Both are checked first, so that a mismatch in one leaves both unchanged.
  auto read = (*diloco).read_state(state_of(std::move(shared)));
  auto read_ranks = (*diloco).read_rank_state(std::move(states));
  read();
  read_ranks();
}

void bind_diloco(py::module_& m) {
  py::class_<PythonDiLoCo, std::shared_ptr<PythonDiLoCo>>(m, "DiLoCo")
      .def(py::init(&make_diloco), py::arg("group"), py::arg("device"),
           py::arg("parameters"), py::arg("hook"), py::kw_only(), py::arg("period"),
           py::arg("outer_lr"), py::arg("outer_momentum"), py::arg("fragments"),
           py::arg("delay"), py::arg("mixing"), py::arg("init_sync"),
           py::arg("bucket_cap_mb"))
      .def(
          "after_step", [](PythonDiLoCo& diloco) { (*diloco).step(); }, NoGil())
      .def(
          "finish", [](PythonDiLoCo& diloco) { (*diloco).finish(); }, NoGil())
      .def_property_readonly("steps",
                             [](PythonDiLoCo& diloco) { return (*diloco).steps(); })
      .def_property_readonly("rejected",
                             [](PythonDiLoCo& diloco) { return (*diloco).rejected(); })
      .def("stats", [](PythonDiLoCo& diloco) { return (*diloco).stats(); })
      .def(
          "state", [](PythonDiLoCo& diloco) { return parts_of((*diloco).state()); },
          NoGil())
      .def(
          "rank_state",
          [](PythonDiLoCo& diloco) { return parts_of((*diloco).rank_state()); }, NoGil())
      .def("load_state", &load_diloco, NoGil());
}

void bind_averagers(py::module_& m) {
  m.def("average_parameters", [](const std::vector<at::Tensor>& parameters, Group& group,
                                 const std::string& device) {
    py::gil_scoped_release unlocked;
    return average_parameters(parameters, adopt(group, type_of(device)));
  });
  py::class_<ModelAverager, std::shared_ptr<ModelAverager>>(m, "ModelAverager")
      .def("average_parameters", &ModelAverager::average_parameters, NoGil())
      .def("average_now", &ModelAverager::average_now, NoGil())
      .def_property("step", &ModelAverager::step, &ModelAverager::set_step)
      .def_property_readonly("bytes_sent", &ModelAverager::bytes_sent)
      .def_property_readonly("fingerprint", &ModelAverager::fingerprint);
  m.def("periodic_averager",
        [](Group& group, const std::string& device, int64_t period,
           int64_t warmup_steps) -> std::shared_ptr<ModelAverager> {
          py::gil_scoped_release unlocked;
          return std::make_shared<PeriodicModelAverager>(
              adopt(group, type_of(device)),
              PeriodicModelAveragerOptions{period, warmup_steps});
        });
  m.def("hierarchical_averager",
        [](Group& group, const std::string& device, const Levels& levels,
           int64_t warmup_steps) -> std::shared_ptr<ModelAverager> {
          py::gil_scoped_release unlocked;
          return std::make_shared<HierarchicalModelAverager>(
              adopt(group, type_of(device)),
              HierarchicalModelAveragerOptions{levels_of(levels), warmup_steps});
        });
}

void bind_local_sgd(py::module_& m) {
  py::class_<PostLocalSGDHook, Hook, std::shared_ptr<PostLocalSGDHook>>(m,
                                                                        "PostLocalSGDHook")
      .def_property("iteration", &PostLocalSGDHook::iteration,
                    &PostLocalSGDHook::set_iteration);
  m.def("make_post_local_sgd", [](Group* subgroup, const std::string& device, int64_t start,
                                  bool allreduce, std::shared_ptr<Hook> inner) {
    py::gil_scoped_release unlocked;
    PostLocalSGDOptions options;
    if (subgroup) options.subgroup = adopt(*subgroup, type_of(device));
    options.start_localSGD_iter = start;
    options.post_local_gradient_allreduce = allreduce;
    return make_post_local_sgd(std::move(options), std::move(inner));
  });
  py::class_<LocalSGDCore, std::shared_ptr<LocalSGDCore>>(m, "LocalSGDCore")
      .def(py::init([](Group& group, const std::string& device, Group* subgroup,
                       int64_t warmup_steps, int64_t period, const Levels& levels,
                       bool allreduce, std::shared_ptr<Hook> inner) {
        py::gil_scoped_release unlocked;
        const c10::DeviceType type = type_of(device);
        optim::LocalSGDOptions options{.warmup_steps = warmup_steps,
                                       .period = period,
                                       .levels = levels_of(levels),
                                       .post_local_gradient_allreduce = allreduce};
        if (subgroup) options.subgroup = adopt(*subgroup, type);
        return std::make_shared<LocalSGDCore>(adopt(group, type), options,
                                              std::move(inner));
      }))
      .def_property_readonly("hook", &LocalSGDCore::hook)
      .def_property_readonly("is_local", &LocalSGDCore::is_local)
      .def_property_readonly("steps",
                             [](LocalSGDCore& core) { return core.averager().step(); })
      .def_property_readonly(
          "bytes_sent", [](LocalSGDCore& core) { return core.averager().bytes_sent(); })
      .def("after_step", &LocalSGDCore::after_step, NoGil())
      .def(
          "finish",
          [](LocalSGDCore& core, const std::vector<at::Tensor>& parameters) {
            core.averager().average_now(parameters);
          },
          NoGil())
      .def("set_steps", &LocalSGDCore::set_steps);
}

}  // namespace

void bind_averaging(py::module_& m) {
  bind_averagers(m);
  bind_local_sgd(m);
  bind_diloco(m);
}

}  // namespace brigade::python
