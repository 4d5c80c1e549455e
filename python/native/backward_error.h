// Brigade's exceptions on their way out of backward(). torch makes a RuntimeError of every
// C++ exception that it does not know, except of those that name a Python type themselves.
#pragma once
#include <exception>
#include <string>

struct _object;

namespace brigade::python {

// The Python type of a C++ error; set when the module is initialised.
template <class CppError>
inline _object* python_type = nullptr;

// The same error in a form that becomes its Python type. One that is not Brigade's is given
// back as it is. Needs no GIL.
std::exception_ptr for_backward(const std::exception_ptr& error);
// A HookError in that form.
std::exception_ptr hook_error_for_backward(const std::string& text);

}  // namespace brigade::python
