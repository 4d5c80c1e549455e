// Shared by the files of brigade._native: its parts, its exceptions, and the conversion of
// state.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/valid_utf8.h"
#include "brigade/named_state.h"

namespace pybind11 {
class module_;
}

namespace brigade::python {

// Adds the exceptions to the module; this is their only list. torch turns every C++
// exception that it does not know into a RuntimeError, except those that name a Python type
// themselves.
void bind_errors(pybind11::module_& m);

// Returns the error in a form that becomes its Python type; one that is not Brigade's as it
// is. Needs no GIL.
std::exception_ptr for_backward(const std::exception_ptr& error);

// The state of a hook or an optimizer: tensors and values.
using StateParts =
    std::pair<std::map<std::string, at::Tensor>, std::map<std::string, std::string>>;
inline StateParts parts_of(NamedState state) {
  return {std::move(state.tensors), std::move(state.values)};
}
inline NamedState state_of(StateParts parts) {
  return {std::move(parts.first), std::move(parts.second)};
}

// Their destructors wait for threads that may want the GIL, so they run without it.
template <class T>
std::shared_ptr<T> ending_without_gil(T* made) {
  return std::shared_ptr<T>(made, [](T* last) {
    std::optional<pybind11::gil_scoped_release> unlocked;
    if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
    delete last;
  });
}

void bind_averaging(pybind11::module_& m);
void bind_checkpoint(pybind11::module_& m);
void bind_optimizers(pybind11::module_& m);
void bind_reducer_layout(pybind11::module_& m);
void bind_zero(pybind11::module_& m);

}  // namespace brigade::python
