// What the files of brigade._native share: its parts, its exceptions, and how state
// crosses.
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

// Adds the exceptions to the module: the only list of them. torch makes a RuntimeError of
// every C++ exception that it does not know, except of those that name a Python type
// themselves.
void bind_errors(pybind11::module_& m);

// The same error in a form that becomes its Python type. One that is not Brigade's is given
// back as it is. Needs no GIL.
std::exception_ptr for_backward(const std::exception_ptr& error);

// What a hook or an optimizer keeps: tensors and values.
using StateParts =
    std::pair<std::map<std::string, at::Tensor>, std::map<std::string, std::string>>;
inline StateParts parts_of(NamedState state) {
  return {std::move(state.tensors), std::move(state.values)};
}
inline NamedState state_of(StateParts parts) {
  return {std::move(parts.first), std::move(parts.second)};
}

// Ours wait for threads that may want the GIL, so they end without it.
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
