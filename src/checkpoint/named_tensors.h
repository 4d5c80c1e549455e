// The tensors of a model by name, and the comparison of two of one name.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "brigade/checkpoint.h"

namespace brigade {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Lists tensors in the order of definition; a shared one has its first name only.
template <class Items>
void add_named(NamedTensors& out, std::set<const c10::TensorImpl*>& seen,
               const Items& items) {
  for (const auto& item : items) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      out.emplace_back(item.key(), item.value());
  }
}
inline NamedTensors named_parameters(torch::nn::Module& model) {
  NamedTensors out;
  std::set<const c10::TensorImpl*> seen;
  add_named(out, seen, model.named_parameters());
  return out;
}
inline NamedTensors parameters_and_buffers(torch::nn::Module& model) {
  NamedTensors out;
  std::set<const c10::TensorImpl*> seen;
  add_named(out, seen, model.named_parameters());
  add_named(out, seen, model.named_buffers());
  return out;
}

inline std::string looks_like(const at::Tensor& tensor) {
  std::ostringstream text;
  text << at::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
}

// Throws CheckpointError unless shape and dtype are equal.
inline void check_like(const std::string& what, const std::string& name,
                       const at::Tensor& here, const at::Tensor& saved) {
  if (here.scalar_type() == saved.scalar_type() && here.sizes() == saved.sizes()) return;
  throw CheckpointError(what + " '" + name + "' is " + looks_like(here) + " here, but " +
                        looks_like(saved) + " in the checkpoint");
}

}  // namespace brigade
