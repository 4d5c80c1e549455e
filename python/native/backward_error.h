// Brigade's exceptions as Python's, and on their way out of backward(). torch makes a
// RuntimeError of every C++ exception that it does not know, except of those that name a
// Python type themselves.
#pragma once
#include <exception>

namespace pybind11 {
class module_;
}

namespace brigade::python {

// Adds the exceptions to the module: the only list of them.
void bind_errors(pybind11::module_& m);

// The same error in a form that becomes its Python type. One that is not Brigade's is given
// back as it is. Needs no GIL.
std::exception_ptr for_backward(const std::exception_ptr& error);

}  // namespace brigade::python
