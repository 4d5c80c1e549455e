// Condenses tensors to a word, so that ranks can compare them bit by bit.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace brigade::tool {

// 16 digits that depend on every byte of all tensors, wherever they are.
std::string fingerprint(const std::vector<at::Tensor>& tensors);

}  // namespace brigade::tool
