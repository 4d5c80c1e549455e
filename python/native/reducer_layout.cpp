// How the gradients of a model of Python's DDP lie in buckets: read, and put into force.
#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "bindings.h"
#include "torch_port/reducer.h"

namespace brigade::python {
namespace {

namespace py = pybind11;
using Tensors = std::vector<at::Tensor>;
using BucketCache = std::unordered_map<size_t, Tensors>;

// What the Reducer keeps to itself; it has no other way in.
struct Inside : c10d::Reducer {
  static auto parameters() { return &Inside::params_; }
  static auto awaits_gradients() { return &Inside::expect_autograd_hooks_; }
  static auto has_rebuilt() { return &Inside::has_rebuilt_bucket_; }
  static auto arrived() { return &Inside::rebuilt_params_; }
  static auto arrived_indices() { return &Inside::rebuilt_param_indices_; }
};
// By bucket, its parameters; that member is private, which an explicit instantiation may
// pass over.
BucketCache& cache_of(c10d::Reducer& reducer);
template <BucketCache c10d::Reducer::*member>
struct CacheAccess {
  friend BucketCache& cache_of(c10d::Reducer& reducer) { return reducer.*member; }
};
template struct CacheAccess<&c10d::Reducer::cached_variables_for_bucket_>;

std::vector<size_t> indices_of(c10d::Reducer& reducer, const Tensors& parameters) {
  const Tensors& all = reducer.*Inside::parameters();
  std::vector<size_t> indices;
  for (const at::Tensor& parameter : parameters) {
    const auto found = std::ranges::find_if(
        all, [&](const at::Tensor& each) { return each.is_same(parameter); });
    if (found == all.end())
      throw ConfigError(
          "set_bucket_layout: the model does not train one of the parameters");
    indices.push_back(static_cast<size_t>(found - all.begin()));
  }
  return indices;
}

// The buckets; whether they are final, not to be built anew before the next pass; and if
// they are not, the parameters in the order in which their gradients came, which the next
// ones will be built of.
std::tuple<std::vector<Tensors>, bool, Tensors> bucket_layout(c10d::Reducer& reducer) {
  return {torch_port::buckets_of(reducer), reducer.*Inside::has_rebuilt(),
          reducer.*Inside::arrived()};
}

// REQUIRES: between iterations; see awaits_backward.
void set_bucket_layout(c10d::Reducer& reducer, const std::vector<Tensors>& buckets,
                       bool final, const Tensors& arrived) {
  std::vector<std::vector<size_t>> indices;
  std::vector<size_t> once;
  for (const Tensors& bucket : buckets) {
    indices.push_back(indices_of(reducer, bucket));
    once.insert(once.end(), indices.back().begin(), indices.back().end());
  }
  std::ranges::sort(once);
  const bool twice = std::ranges::adjacent_find(once) != once.end();
  if (twice || once.size() != (reducer.*Inside::parameters()).size())
    throw ConfigError("set_bucket_layout: each parameter must be in one bucket");
  const std::vector<size_t> order = indices_of(reducer, arrived);
  reducer.initialize_buckets(std::move(indices));
  cache_of(reducer).clear();
  reducer.*Inside::has_rebuilt() = final;
  reducer.*Inside::arrived() = arrived;
  reducer.*Inside::arrived_indices() = {order.begin(), order.end()};
}

}  // namespace

void bind_reducer_layout(py::module_& m) {
  m.def("bucket_layout", &bucket_layout);
  m.def("set_bucket_layout", &set_bucket_layout);
  // Whether a forward pass has announced a backward pass that has not ended.
  m.def("awaits_backward",
        [](c10d::Reducer& reducer) { return reducer.*Inside::awaits_gradients(); });
}

}  // namespace brigade::python
