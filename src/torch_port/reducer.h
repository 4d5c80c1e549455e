// Makes c10d's Reducer and Logger. Only this file knows their constructors, which change
// from one LibTorch to the next.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Logger;
class ProcessGroup;
class Reducer;
}  // namespace c10d
namespace torch::autograd {
struct Node;
}

namespace brigade::torch_port {

struct ReducerOptions {
  // In bytes. The list wins unless it is empty.
  int64_t first_bucket_cap = 0;
  int64_t bucket_cap = 0;
  std::vector<int64_t> bucket_caps;
  // Indices of parameters; if empty, the caps decide.
  std::vector<std::vector<size_t>> first_buckets;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  bool skip_all_reduce_unused_params = false;
};

// The Reducer puts its hooks on the parameters' gradient accumulators at once. The
// pointer's deleter swallows exceptions of ~Reducer, so that it may run in a destructor or
// while unwinding.
// REQUIRES: parameters, names and sparse have equal sizes; every parameter needs a
// gradient.
std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            const std::vector<std::string>& names,
                                            const std::vector<bool>& sparse,
                                            c10::intrusive_ptr<c10d::ProcessGroup> group,
                                            const ReducerOptions& options);

// Collects times for the Reducer, which keeps a weak reference only.
// set_construction_data_and_log() is never called: it casts the group's backend to the
// class that the backend's name suggests, and crashes on a wrapper (such as
// TORCH_DISTRIBUTED_DEBUG=DETAIL makes).
std::shared_ptr<c10d::Logger> make_logger(const std::shared_ptr<c10d::Reducer>& reducer);

// The group that the Reducer reduces over now.
const c10::intrusive_ptr<c10d::ProcessGroup>& group_of(c10d::Reducer& reducer);

// The Reducer's divisor in the present backward pass: the number of ranks in its group or,
// inside of join(), if so configured, of those that still have input.
int divisor_of(c10d::Reducer& reducer);

// The parameters in each of the Reducer's buckets, in their order. REQUIRES: the caller is
// inside of a comm hook, or has the Reducer for itself.
std::vector<std::vector<at::Tensor>> buckets_of(c10d::Reducer& reducer);

// Calls `then` on autograd's thread when the Reducer is done with the present backward
// pass. REQUIRES: the caller is inside of that pass, and the Reducer has not seen all
// gradients yet; both hold in a comm hook.
void when_reducer_is_done(std::function<void()> then);

// Calls `check` before the accumulator of a parameter's gradient runs, on the same thread.
// backward() throws its exception.
void guard_accumulator(torch::autograd::Node& accumulator, std::function<void()> check);

// The indices of parameters in the Reducer's error that they got no gradient. Empty if
// `what` is another error.
std::vector<size_t> parameters_without_gradient(const std::string& what);

}  // namespace brigade::torch_port
