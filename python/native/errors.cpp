#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "base/failure.h"
#include "base/valid_utf8.h"
#include "bindings.h"
#include "brigade/checkpoint.h"

namespace brigade::python {
namespace {

namespace py = pybind11;

struct ErrorType {
  const char* name;
  PyObject* kin;  // a further Python base type; null: none
  const char* doc;
  bool (*is)(const std::exception& error);
  PyObject* made = nullptr;
};

template <class CppError>
ErrorType error_type(const char* name, PyObject* kin, const char* doc) {
  return {name, kin, doc, [](const std::exception& error) {
            return dynamic_cast<const CppError*>(&error) != nullptr;
          }};
}

// The base of all errors comes first. Python's own types exist once Python runs.
std::vector<ErrorType>& error_types() {
  static std::vector<ErrorType> types{
      error_type<Error>("Error", PyExc_RuntimeError,
                        "The base of all that brigade raises."),
      error_type<ConfigError>("ConfigError", PyExc_ValueError, "A bad option or argument."),
      error_type<RendezvousError>("RendezvousError", nullptr,
                                  "The ranks could not find each other."),
      error_type<TimeoutError>("TimeoutError", PyExc_TimeoutError,
                               "A wait for other ranks reached its time limit."),
      error_type<PeerLostError>(
          "PeerLostError", PyExc_ConnectionError,
          "The connection to another rank broke, because it has ended or "
          "was lost. `rank` is its number, or None."),
      error_type<MismatchError>("MismatchError", nullptr,
                                "The ranks disagree about what must be equal."),
      error_type<CheckpointError>("CheckpointError", nullptr,
                                  "A file or its content cannot be used."),
      error_type<HookError>("HookError", nullptr,
                            "A hook or one of its collectives failed, on this rank or on "
                            "another. `kind` says what happened, `rank` which rank failed, "
                            "or None.")};
  return types;
}

PyObject* python_type_of(const Error& error) {
  const auto& types = error_types();
  for (auto type = types.rbegin(); type != types.rend(); ++type)
    if (type->is(error)) return type->made;
  return PyExc_RuntimeError;
}

// torch makes the exception from type and text, on the thread on which it asked for the
// type. Until then the error's other fields wait here.
thread_local std::optional<base::Cause> about_to_be_made;

// Is __init__ of the types that have more than a text.
void init_error(const py::object& self, const py::args& arguments) {
  py::handle(PyExc_RuntimeError).attr("__init__")(self, *arguments);
  const auto about = std::exchange(about_to_be_made, std::nullopt);
  if (!about || arguments.size() != 1) return;
  const py::object text = arguments[0];
  if (!text.equal(py::str(about->text))) return;
  if (py::hasattr(self, "kind")) self.attr("kind") = base::name_of(about->kind);
  self.attr("rank") = about->rank;
}

// The error as Python gets it. Its text may quote a file name, an option or a variable that
// is not UTF-8.
base::Cause told(const Error& error) {
  base::Cause cause = base::failure_of(error);
  cause.text = base::valid_utf8(error.what());
  return cause;
}

class BackwardError : public torch::PyTorchError {
 public:
  explicit BackwardError(const Error& error)
      : PyTorchError(told(error).text), type_(python_type_of(error)), cause_(told(error)) {}
  PyObject* python_type() override {
    about_to_be_made = cause_;
    about_to_be_made->text = torch::processErrorMsg(cause_.text);  // as torch shows it
    return type_;
  }

 private:
  PyObject* const type_;
  const base::Cause cause_;
};

void translate(std::exception_ptr thrown) {
  if (!thrown) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    about_to_be_made = told(error);
    const py::object made = py::handle(python_type_of(error))(about_to_be_made->text);
    about_to_be_made.reset();
    PyErr_SetObject(python_type_of(error), made.ptr());
  }
}

}  // namespace

void bind_errors(py::module_& m) {
  const std::string package = m.attr("__name__").cast<std::string>();
  py::object base;
  for (ErrorType& type : error_types()) {
    py::object bases = base ? py::object(py::make_tuple(base)) : py::none();
    if (type.kin)
      bases = base ? py::make_tuple(base, py::handle(type.kin))
                   : py::make_tuple(py::handle(type.kin));
    const std::string full = package + "." + type.name;
    type.made = PyErr_NewExceptionWithDoc(full.c_str(), type.doc, bases.ptr(), nullptr);
    if (!type.made) throw py::error_already_set();
    m.attr(type.name) = py::handle(type.made);
    if (!base) base = py::reinterpret_borrow<py::object>(type.made);
  }
  for (const char* name : {"PeerLostError", "HookError"}) {
    const py::object type = m.attr(name);
    type.attr("__init__") =
        py::cpp_function(init_error, py::name("init_error"), py::is_method(type));
    type.attr("rank") = py::none();
  }
  m.attr("HookError").attr("kind") = base::name_of(Failure::other);
  // Is asked before torch's own translator.
  py::register_exception_translator(translate);
}

std::exception_ptr for_backward(const std::exception_ptr& error) try {
  std::rethrow_exception(error);
} catch (const Error& e) {
  return std::make_exception_ptr(BackwardError(e));
} catch (...) {
  return error;
}

}  // namespace brigade::python
