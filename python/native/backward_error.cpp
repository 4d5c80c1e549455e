#include "backward_error.h"

#include <torch/csrc/Exceptions.h>

#include "base/valid_utf8.h"
#include "brigade/error.h"
#include "brigade/hook.h"

namespace brigade::python {
namespace {

class BackwardError : public torch::PyTorchError {
 public:
  BackwardError(PyObject* type, const char* text)
      : PyTorchError(base::valid_utf8(text)), type_(type) {}
  PyObject* python_type() override { return type_; }

 private:
  PyObject* type_;
};

template <class CppError>
std::exception_ptr made_of(const CppError& error) {
  return std::make_exception_ptr(BackwardError(python_type<CppError>, error.what()));
}

}  // namespace

std::exception_ptr for_backward(const std::exception_ptr& error) try {
  std::rethrow_exception(error);
} catch (const HookError& e) {
  return made_of(e);
} catch (const MismatchError& e) {
  return made_of(e);
} catch (const TimeoutError& e) {
  return made_of(e);
} catch (const RendezvousError& e) {
  return made_of(e);
} catch (const ConfigError& e) {
  return made_of(e);
} catch (const Error& e) {
  return made_of(e);
} catch (...) {
  return error;
}

std::exception_ptr hook_error_for_backward(const std::string& text) {
  return made_of(HookError(text));
}

}  // namespace brigade::python
