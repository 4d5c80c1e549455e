// Runs a hook that is written in Python among native ones.
//
// Vocabulary. The *body* is the user's code: an `async def` of a bucket and a comm. A *run*
// is one call of it, for one bucket. A run awaits a *request*: a collective that the engine
// issues once Python has returned it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "brigade/hook.h"

namespace brigade::python {

// Any thread may drop this. It is not released once the interpreter is gone.
std::shared_ptr<pybind11::object> shared_object(pybind11::object object);

struct Request {
  enum class Kind { all_reduce, all_gather, all_to_all, broadcast };
  Kind kind;
  at::Tensor tensor, output;
  int root = 0;
};

// `body` may have the methods state(), load_state(tensors, values) and reset() of
// brigade.Hook. Throws ConfigError if it cannot be called.
std::shared_ptr<Hook> make_python_hook(std::string name, std::string fingerprint,
                                       pybind11::object body);

void bind_python_hooks(pybind11::module_& m);

}  // namespace brigade::python
