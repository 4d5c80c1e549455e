#include "python_hook.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include "brigade/error.h"
#include "brigade/hooks.h"

namespace brigade::python {
namespace {

namespace py = pybind11;

// The Comm that a body uses, valid as long as its bucket is under way.
class PythonComm {
 public:
  explicit PythonComm(Comm& comm) : comm_(&comm) {}
  void end() { comm_ = nullptr; }
  const Comm& get() const {
    if (!comm_)
      throw ConfigError("comm: this bucket has been reduced; it is of no use now");
    return *comm_;
  }

 private:
  Comm* comm_;
};

// The single step of `await request`: returns the request, then ends.
struct RequestSteps {
  py::object request;
  bool handed_out = false;

  py::object next() {
    if (handed_out) throw py::stop_iteration();
    handed_out = true;
    return request;
  }
};

// Python's exceptions must not reach threads that do not hold the GIL.
template <class Body>
auto in_python(const std::string& hook, Body&& body) {
  py::gil_scoped_acquire locked;
  try {
    return body();
  } catch (py::error_already_set& error) {
    throw Error("hook '" + hook + "', in Python: " + base::valid_utf8(error.what()));
  }
}

// One call of a body. Any thread may resume it, one at a time.
class BodyRun {
 public:
  BodyRun(const std::string& hook, const py::object& body, Bucket bucket, Comm& comm)
      : hook_(hook), comm_(std::make_shared<PythonComm>(comm)) {
    in_python(hook_, [&] {
      py::object made = called(body, std::move(bucket));
      if (!py::hasattr(made, "send"))
        throw Error("hook '" + hook_ + "': the function is not an 'async def': it gave a " +
                    std::string(py::str(py::type::of(made).attr("__qualname__"))));
      coroutine_ = shared_object(std::move(made));
    });
  }
  ~BodyRun() {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire locked;
    comm_->end();
    try {
      if (coroutine_) coroutine_->attr("close")();
    } catch (py::error_already_set&) {
      // The coroutine was told to end, so its exception has no recipient.
    }
    coroutine_.reset();
  }
  BodyRun(const BodyRun&) = delete;
  BodyRun& operator=(const BodyRun&) = delete;

  // Returns the request that it awaits next; none if it has ended, with a result.
  std::optional<Request> go_on() {
    const at::NoGradGuard no_grad;
    return in_python(hook_, [&]() -> std::optional<Request> {
      py::object asked = py::reinterpret_steal<py::object>(step());
      if (!asked) return std::nullopt;
      if (!py::isinstance<Request>(asked))
        throw Error("hook '" + hook_ +
                    "': awaits something that is no collective of its comm");
      return asked.cast<Request>();
    });
  }
  at::Tensor result() const { return result_; }

 private:
  py::object called(const py::object& body, Bucket bucket) {
    try {
      return body(std::move(bucket), comm_);
    } catch (...) {
      comm_->end();
      throw;
    }
  }
  // Returns null if the coroutine has ended.
  PyObject* step() {
    PyObject* value = nullptr;
    switch (PyIter_Send(coroutine_->ptr(), Py_None, &value)) {
      case PYGEN_NEXT:
        return value;
      case PYGEN_RETURN: {
        const py::object given = py::reinterpret_steal<py::object>(value);
        if (!THPVariable_Check(given.ptr()))
          throw Error("hook '" + hook_ + "': must return a tensor, and returned a " +
                      std::string(py::str(py::type::of(given).attr("__qualname__"))));
        result_ = given.cast<at::Tensor>();
        return nullptr;
      }
      default:
        throw py::error_already_set();
    }
  }

  const std::string& hook_;
  std::shared_ptr<PythonComm> comm_;
  std::shared_ptr<py::object> coroutine_;
  at::Tensor result_;
};

class PythonHook : public Hook {
 public:
  PythonHook(std::string name, std::string fingerprint, py::object body)
      : name_(std::move(name)),
        fingerprint_(std::move(fingerprint)),
        body_(shared_object(std::move(body))) {}

  std::string name() const override { return name_; }
  std::string fingerprint() const override { return fingerprint_; }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    BodyRun run(name_, *body_, std::move(bucket), comm);
    while (const std::optional<Request> asked = run.go_on()) {
      co_await issue(*asked, comm);
    }
    co_return run.result();
  }

  HookState state() const override {
    return in_python(name_, [&]() -> HookState {
      if (!py::hasattr(*body_, "state")) return {};
      return state_of(body_->attr("state")().cast<StateParts>());
    });
  }
  void load_state(const HookState& state) override {
    in_python(name_, [&] {
      if (py::hasattr(*body_, "load_state"))
        body_->attr("load_state")(state.tensors, state.values);
    });
  }
  void reset() override {
    in_python(name_, [&] {
      if (py::hasattr(*body_, "reset")) body_->attr("reset")();
    });
  }

 private:
  static Collective issue(const Request& asked, Comm& comm) {
    switch (asked.kind) {
      case Request::Kind::all_reduce:
        return comm.all_reduce(asked.tensor);
      case Request::Kind::all_gather:
        return comm.all_gather(asked.tensor, asked.output);
      case Request::Kind::all_to_all:
        return comm.all_to_all(asked.tensor, asked.output);
      case Request::Kind::broadcast:
        return comm.broadcast(asked.tensor, asked.root);
    }
    throw Error("no such collective");
  }

  const std::string name_, fingerprint_;
  const std::shared_ptr<py::object> body_;
};

std::string text_of(const std::string& name, const HookArguments& arguments) {
  std::string text = name;
  for (const auto& [key, value] : arguments)
    text += (text.size() == name.size() ? ":" : ",") + key + "=" + value;
  return text;
}

void register_python_hook(const std::string& name, py::object factory) {
  if (!PyCallable_Check(factory.ptr()))
    throw ConfigError("register_hook: the factory of '" + name + "' can't be called");
  const auto kept = shared_object(std::move(factory));
  register_hook(name, [name, kept](const HookArguments& arguments) {
    py::gil_scoped_acquire locked;
    py::object made = (*kept)(arguments);
    if (py::isinstance<Hook>(made)) return made.cast<std::shared_ptr<Hook>>();
    return make_python_hook(name, text_of(name, arguments), std::move(made));
  });
}

void bind_bucket(py::module_& m) {
  py::class_<Bucket>(m, "Bucket", "The gradients of several parameters in one flat tensor.")
      .def("index", &Bucket::index)
      .def("is_last", &Bucket::is_last)
      .def("buffer", &Bucket::buffer)
      .def("gradients", &Bucket::gradients)
      .def("parameters", &Bucket::parameters)
      .def("names", &Bucket::names);
}

void bind_comm(py::module_& m) {
  py::class_<Request>(m, "Collective", "A collective, to be awaited.")
      .def("__await__", [](py::object self) { return RequestSteps{std::move(self)}; });
  py::class_<RequestSteps>(m, "CollectiveSteps")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &RequestSteps::next);
  const auto ask = [](Request::Kind kind) {
    return [kind](const PythonComm& comm, at::Tensor input, at::Tensor output) {
      comm.get();
      return Request{kind, std::move(input), std::move(output)};
    };
  };
  py::class_<PythonComm, std::shared_ptr<PythonComm>>(
      m, "Comm", "A hook's connection to the other ranks, for one bucket in one step.")
      .def("rank", [](const PythonComm& comm) { return comm.get().rank(); })
      .def("size", [](const PythonComm& comm) { return comm.get().size(); })
      .def("step", [](const PythonComm& comm) { return comm.get().step(); })
      .def("backend", [](const PythonComm& comm) { return comm.get().backend(); })
      .def(
          "all_reduce",
          [](const PythonComm& comm, at::Tensor tensor) {
            comm.get();
            return Request{Request::Kind::all_reduce, std::move(tensor)};
          },
          py::arg("tensor"))
      .def("all_gather", ask(Request::Kind::all_gather), py::arg("input"),
           py::arg("output"))
      .def("all_to_all", ask(Request::Kind::all_to_all), py::arg("input"),
           py::arg("output"))
      .def(
          "broadcast",
          [](const PythonComm& comm, at::Tensor tensor, int root) {
            comm.get();
            return Request{Request::Kind::broadcast, std::move(tensor), {}, root};
          },
          py::arg("tensor"), py::arg("root"));
}

}  // namespace

std::shared_ptr<py::object> shared_object(py::object object) {
  return std::shared_ptr<py::object>(new py::object(std::move(object)),
                                     [](py::object* last) {
                                       if (!Py_IsInitialized()) {
                                         last->release();
                                         delete last;
                                         return;
                                       }
                                       py::gil_scoped_acquire locked;
                                       delete last;
                                     });
}

std::shared_ptr<Hook> make_python_hook(std::string name, std::string fingerprint,
                                       py::object body) {
  if (!PyCallable_Check(body.ptr()))
    throw ConfigError("hook '" + name +
                      "': its factory must give a brigade.Hook or an async function of "
                      "(bucket, comm)");
  return std::make_shared<PythonHook>(std::move(name), std::move(fingerprint),
                                      std::move(body));
}

void bind_python_hooks(py::module_& m) {
  bind_bucket(m);
  bind_comm(m);
  m.def("register_hook", &register_python_hook);
}

}  // namespace brigade::python
