// What a model's buckets hold. Ranks whose buckets differ would add up each other's bytes
// as garbage, where these happen to be equal in number.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::engine {

// "Float [16, 6] on cpu", and the strides of one that is not contiguous: buckets copy a
// parameter's layout.
std::string describe(const at::Tensor& tensor);

// A line for each parameter: its bucket, its name, and what describe() says of it.
using Buckets = std::vector<std::vector<at::Tensor>>;
using NameOf = std::function<std::string(const at::Tensor& parameter)>;
std::string describe_layout(const Buckets& buckets, const NameOf& name_of);

// Collective. Throws MismatchError, on every rank, with the first line that differs, unless
// all ranks have the same layout.
void check_same_layout(const ProcessGroup& group, const std::string& layout);

}  // namespace brigade::engine
