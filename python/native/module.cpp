// brigade._native: what the Python modules use. It shares types with torch's own bindings
// (Reducer, ProcessGroup, GradBucket, Future), which works only with the pybind11 of
// torch's include folder.
#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "bindings.h"
#include "brigade/hooks.h"
#include "engine/replica_hashes.h"
#include "native_hook.h"
#include "python_hook.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

// A Reducer with a Python hook takes only results that are Python objects.
std::shared_ptr<torch::jit::PythonFutureWrapper> to_python(const FuturePtr& future) {
  return std::make_shared<torch::jit::PythonFutureWrapper>(future->then(
      [](c10::ivalue::Future& done) {
        const at::Tensor result = done.value().toTensor();
        py::gil_scoped_acquire locked;
        return torch::jit::toIValue(py::cast(result), c10::PyObjectType::get());
      },
      c10::PyObjectType::get()));
}

void bind_stats(py::module_& m) {
  py::class_<HookTraffic>(m, "HookTraffic", "How much a hook moved, and how long it took.")
      .def_readonly("steps", &HookTraffic::steps,
                    "The number of backward passes that were counted.")
      .def_readonly("bytes_before", &HookTraffic::bytes_before,
                    "The size of the buckets before the hook.")
      .def_readonly("bytes_sent", &HookTraffic::bytes_sent,
                    "The payload that this rank sent, by the algorithm of each collective.")
      .def_readonly("bytes_to_other_hosts", &HookTraffic::bytes_to_other_hosts,
                    "The part of bytes_sent that leaves this host.")
      .def_readonly("collectives", &HookTraffic::collectives,
                    "The number of collectives that this rank issued.")
      .def_readonly("encode_seconds", &HookTraffic::encode_seconds,
                    "Time in the hook, up to its last collective.")
      .def_readonly("wait_seconds", &HookTraffic::wait_seconds,
                    "Time from issuing a collective to its end.")
      .def_readonly("decode_seconds", &HookTraffic::decode_seconds,
                    "Time in the hook, after its last collective.")
      .def_readonly("reduce_seconds", &HookTraffic::reduce_seconds,
                    "Time from a bucket's start to its end, added up over buckets.")
      .def_readonly("hidden_seconds", &HookTraffic::hidden_seconds,
                    "The part of reduce_seconds while backward was still computing.")
      .def_property_readonly("overlap", &HookTraffic::overlap,
                             "hidden_seconds as a part of reduce_seconds, 0 to 1.")
      .def("__repr__", [](const HookTraffic& traffic) {
        return c10::str("HookTraffic(steps=", traffic.steps,
                        ", bytes_before=", traffic.bytes_before,
                        ", bytes_sent=", traffic.bytes_sent, ")");
      });
  py::class_<HookStats>(m, "HookStats",
                        "How much a hook moved, in the last step and since it was set.")
      .def_readonly("last_step", &HookStats::last_step,
                    "The traffic of the last backward pass.")
      .def_readonly("total", &HookStats::total, "The traffic since the hook was set.")
      .def_readonly("shape", &HookStats::shape,
                    "'flat', or, when the hook treats the ranks of a host as one, their "
                    "layout: '2 hosts x 4 ranks'.")
      .def_readonly(
          "parts", &HookStats::parts,
          "The traffic since the hook was set, for each part of its work; for rules: "
          "by rule. Here encode, decode and hidden seconds are 0.")
      .def_readonly("history", &HookStats::history,
                    "The hook's decisions so far, a line each.");
}

// Writes, in torch's words, to the log of torch's PowerSGD. Asks for the logger each time:
// a hook may end without the GIL, so it holds no Python object.
void log_compression(int64_t iteration, const CompressionStats& stats) {
  py::gil_scoped_acquire locked;
  try {
    py::module_::import("logging")
        .attr("getLogger")("torch.distributed.brigade.powerSGD_hook")
        .attr("info")(
            "Compression stats: iter %s, total before compression %s, total after "
            "compression %s, rate %s",
            iteration, stats.elements_before, stats.elements_after, stats.rate);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the log of PowerSGD's compression");
  }
}

void bind_hooks(py::module_& m) {
  py::class_<Hook, std::shared_ptr<Hook>>(
      m, "Hook", "A native hook for one model, as brigade.make_hook() makes it.")
      .def_property_readonly("name", &Hook::name, "The name in brigade.hook_table().")
      .def_property_readonly("fingerprint", &Hook::fingerprint,
                             "Name and options, readable. Equal on two ranks only if their "
                             "hooks do the same; compared before the first bucket.")
      .def("__repr__",
           [](const Hook& hook) { return "<brigade.Hook " + hook.name() + ">"; })
      .def(
          "check",
          [](const Hook& hook, const at::Tensor& tensor) {
            hook.check_dtype(tensor.scalar_type());
          },
          py::arg("tensor"),
          "Raises ConfigError when gradients of the tensor's dtype can't be reduced.")
      .def(
          "set_parameters",
          [](Hook& hook, const std::vector<std::string>& names) {
            hook.set_parameters(names);
          },
          py::arg("names"),
          "Tells the hook the names of all parameters that will come; brigade.set_hook "
          "does so. Raises ConfigError if it has no use for one of them.")
      .def(
          "state", [](const Hook& hook) { return parts_of(hook.state()); }, NoGil(),
          "The state that it keeps from step to step, as (tensors, values) by name. Call "
          "it between steps. brigade.state_dict gives it for a checkpoint.")
      .def(
          "load_state",
          [](Hook& hook, std::map<std::string, at::Tensor> tensors,
             std::map<std::string, std::string> values) {
            hook.load_state({std::move(tensors), std::move(values)});
          },
          py::arg("tensors"), py::arg("values"), NoGil(),
          "Loads the state() of a hook of the same kind and options. Call it between "
          "steps.")
      .def("reset", &Hook::reset, NoGil(), "Forgets everything, as if new.");
  py::class_<PowerSGDHook, Hook, std::shared_ptr<PowerSGDHook>>(
      m, "PowerSGDHook", "PowerSGD, as brigade.powerSGD_hook.PowerSGDState makes it.")
      .def(
          "compression_stats",
          [](const PowerSGDHook& hook) {
            const CompressionStats stats = hook.compression_stats();
            return std::make_tuple(stats.rate, stats.elements_before, stats.elements_after);
          },
          "(rate, elements before, elements after) of all that was compressed.");

  m.def(
      "combine_states",
      [](std::vector<StateParts> ranks) {
        std::vector<HookState> states;
        for (StateParts& each : ranks) states.push_back(state_of(std::move(each)));
        return parts_of(combine_states(states));
      },
      NoGil());
  m.def("make_hook", [](const std::string& spec) { return make_hook(spec); });
  m.def("fp16_compress_wrapper", &fp16_compress_wrapper);
  m.def("bf16_compress_wrapper", &bf16_compress_wrapper);
  m.def(
      "make_power_sgd",
      [](bool batched, int64_t rank, int64_t start, double min_rate, bool error_feedback,
         bool warm_start, double epsilon, uint64_t seed, int64_t logging_frequency,
         bool batch) {
        PowerSGDOptions options{.matrix_approximation_rank = rank,
                                .start_powerSGD_iter = start,
                                .min_compression_rate = min_rate,
                                .use_error_feedback = error_feedback,
                                .warm_start = warm_start,
                                .orthogonalization_epsilon = epsilon,
                                .random_seed = seed,
                                .compression_stats_logging_frequency = logging_frequency,
                                .report = log_compression,
                                .batch_tensors_with_same_shape = batch};
        return batched ? make_batched_power_sgd(options) : make_power_sgd(options);
      },
      py::arg("batched"), py::arg("matrix_approximation_rank"),
      py::arg("start_powerSGD_iter"), py::arg("min_compression_rate"),
      py::arg("use_error_feedback"), py::arg("warm_start"),
      py::arg("orthogonalization_epsilon"), py::arg("random_seed"),
      py::arg("compression_stats_logging_frequency"),
      py::arg("batch_tensors_with_same_shape"));

  m.def("hook_table", [] {
    py::list rows;
    for (const HookEntry& entry : hook_table()) {
      std::vector<std::string> options(entry.options.begin(), entry.options.end());
      rows.append(py::make_tuple(std::string(entry.name), std::string(entry.summary),
                                 std::move(options), entry.tolerance,
                                 entry.error_feedback));
    }
    return rows;
  });
}

void bind_reduction(py::module_& m) {
  // Groups and Reducers are taken by reference: the holders that torch declares for them
  // are private to its own files.
  py::class_<NativeHook, std::shared_ptr<NativeHook>>(m, "NativeHook")
      .def(py::init([](c10d::ProcessGroup& group, const std::string& device,
                       std::shared_ptr<Hook> hook) {
        py::gil_scoped_release unlocked;
        return ending_without_gil(
            new NativeHook(group, c10::Device(device).type(), std::move(hook)));
      }))
      .def("set_names", &NativeHook::set_names, NoGil())
      .def("set_may_be_unused",
           [](NativeHook& reduction, bool may_be_unused) {
             reduction.set_pass({.may_be_unused = may_be_unused});
           })
      .def("set_hook", &NativeHook::set_hook, NoGil())
      .def_property_readonly("hook", &NativeHook::hook)
      .def(
          "run",
          [](NativeHook& reduction, c10d::GradBucket& bucket) {
            return to_python(reduction.run_alone(bucket));
          },
          NoGil())
      .def("stats", &NativeHook::stats)
      .def("close", &NativeHook::close, NoGil());
  m.def("close_all", &Closeable::close_all, NoGil());
  m.def("hash_tensors", &engine::hash_tensors, NoGil());
  m.def("hash_of", &engine::hash_of);
  m.def("describe_drift", &engine::describe_drift);
  m.def(
      "check_same",
      [](c10d::ProcessGroup& group, const std::string& what, const std::string& mine,
         const std::string& remedy) { adopt_any(group).check_same(what, mine, remedy); },
      NoGil());

  py::class_<HookSlot, std::shared_ptr<HookSlot>>(m, "HookSlot")
      .def(py::init<>())
      .def(
          "put_reduction",
          [](HookSlot& slot, std::shared_ptr<NativeHook> reduction,
             c10d::ProcessGroup* follow) { slot.put(std::move(reduction), follow); },
          NoGil())
      .def_property_readonly("reduction", &HookSlot::reduction)
      .def("put_python",
           [](HookSlot& slot, py::object state, py::object hook, std::string name) {
             std::shared_ptr<c10d::CommHookInterface> other =
                 std::make_shared<c10d::PythonCommHook>(std::move(state), std::move(hook));
             py::gil_scoped_release unlocked;
             slot.put(std::move(other), std::move(name));
           })
      .def("runs_here", &HookSlot::runs_here)
      .def("announce", &HookSlot::announce, NoGil())
      .def("forget_buckets", [](HookSlot& slot) { slot.reducer_hook->forget_buckets(); })
      .def("drop_gradients_of",
           [](HookSlot& slot, std::vector<at::Tensor> parameters) {
             slot.reducer_hook->set_dropped(std::move(parameters));
           })
      .def("attach", [](std::shared_ptr<HookSlot> slot, c10d::Reducer& reducer) {
        attach(reducer, std::move(slot));
      });
}

}  // namespace
}  // namespace brigade::python

PYBIND11_MODULE(_native, m) {
  brigade::python::bind_errors(m);
  brigade::python::bind_stats(m);
  brigade::python::bind_hooks(m);
  brigade::python::bind_python_hooks(m);
  brigade::python::bind_reduction(m);
  brigade::python::bind_reducer_layout(m);
  brigade::python::bind_optimizers(m);
  brigade::python::bind_zero(m);
  brigade::python::bind_averaging(m);
  brigade::python::bind_checkpoint(m);
}
