// The layout of a model's buckets. If ranks' buckets differ but have equal sizes, the ranks
// would sum unrelated values.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::engine {

// "Float [16, 6] on cpu", and the strides if it is not contiguous, because buckets copy a
// parameter's layout.
std::string describe(const at::Tensor& tensor);

// A line for each parameter: its bucket, its name, and its describe().
using Buckets = std::vector<std::vector<at::Tensor>>;
using NameOf = std::function<std::string(const at::Tensor& parameter)>;
std::string describe_layout(const Buckets& buckets, const NameOf& name_of);

// Collective. Throws MismatchError, on every rank, with the first line that differs, unless
// all ranks have the same layout.
void check_same_layout(const ProcessGroup& group, const std::string& layout);

}  // namespace brigade::engine
