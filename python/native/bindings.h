// The parts of brigade._native that have files of their own.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace brigade::python {

void bind_optimizers(pybind11::module_& m);
void bind_zero(pybind11::module_& m);

}  // namespace brigade::python
