// SPDX-License-Identifier: BSD-3-Clause
// Tensors and texts by name: the state of an object, as a checkpoint stores it and as it is
// sent between ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace brigade {

struct NamedState {
  std::map<std::string, at::Tensor> tensors = {};
  std::map<std::string, std::string> values = {};
};

}  // namespace brigade
