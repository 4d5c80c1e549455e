// A program's collectives over a group: tensors and numbers.
#include <ATen/ATen.h>

#include <cstdarg>
#include <cstdio>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "brigade/process_group.h"
#include "group/process_group_state.h"
#include "torch_port/typed_wait.h"

namespace brigade {
namespace {

// Gloo reads strided tensors as if they were contiguous, and expanded ones out of bounds.
void check_tensor(const char* what, const at::Tensor& tensor) {
  if (!tensor.defined()) throw ConfigError(std::string(what) + ": the tensor is undefined");
  if (!tensor.is_sparse() && !tensor.is_contiguous()) {
    throw ConfigError(c10::str(what, ": a tensor of sizes ", tensor.sizes(),
                               " and strides ", tensor.strides(),
                               "; expected a contiguous one"));
  }
}

template <class Start>
void run(const char* what, ProcessGroup::State& state, Start start,
         std::chrono::milliseconds limit = kNoTimeout) {
  try {
    start()->wait(limit);
  } catch (const std::exception& error) {
    base::Cause cause = torch_port::failure_of(error, *state.group);
    cause.text = std::string(what) + " on rank " +
                 std::to_string(state.world_ranks[state.rank]) + ": " +
                 base::cause_of(error);
    if (cause.rank) {
      cause.rank = state.world_ranks[*cause.rank];
      cause.text += ", which is rank " + std::to_string(*cause.rank);
    }
    std::rethrow_exception(base::make_error(cause));
  }
}

// Without a limit of its own, a single message over gloo has the shorter limit for
// connecting (torch_port/gloo_backend.cpp). Over NCCL a limit would make the host wait.
std::chrono::milliseconds message_limit(const ProcessGroup::State& state) {
  return state.backend == "nccl" ? kNoTimeout : state.timeout;
}

void check_rank(const char* what, const char* field, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw ConfigError(
      c10::str(what, ": ", field, "=", rank, ": expected a rank from 0 to ", size - 1));
}

void check_reduction(const char* what, const at::Tensor& tensor, Reduce how) {
  if (how != Reduce::mean || tensor.is_floating_point() || tensor.is_complex()) return;
  throw ConfigError(
      c10::str(what, ": the mean of ", tensor.scalar_type(),
               " values is not one of them; expected floating point, or sum"));
}

// Gloo has no mean; the caller divides.
c10d::ReduceOp::RedOpType operation(Reduce how) {
  switch (how) {
    case Reduce::min:
      return c10d::ReduceOp::MIN;
    case Reduce::max:
      return c10d::ReduceOp::MAX;
    case Reduce::product:
      return c10d::ReduceOp::PRODUCT;
    case Reduce::sum:
    case Reduce::mean:
      break;
  }
  return c10d::ReduceOp::SUM;
}

// Reduces over the first dimension.
at::Tensor reduce_rows(const at::Tensor& rows, Reduce how) {
  switch (how) {
    case Reduce::min:
      return rows.amin(0);
    case Reduce::max:
      return rows.amax(0);
    case Reduce::product:
      return rows.prod(0, false, rows.scalar_type());
    case Reduce::sum:
    case Reduce::mean:
      break;
  }
  return rows.sum(0, false, rows.scalar_type());
}

std::vector<at::Tensor> space_for(const at::Tensor& tensor, int ranks) {
  std::vector<at::Tensor> space;
  for (int rank = 0; rank < ranks; ++rank) space.push_back(at::empty_like(tensor));
  return space;
}

}  // namespace

void ProcessGroup::all_reduce(at::Tensor tensor, Reduce how) const {
  check_tensor("all_reduce", tensor);
  check_reduction("all_reduce", tensor, how);
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = operation(how);
  run("all_reduce", *state_, [&] { return state_->group->allreduce(tensors, options); });
  if (how == Reduce::mean) tensor.div_(state_->size);
}

void ProcessGroup::broadcast(at::Tensor tensor, int root) const {
  check_tensor("broadcast", tensor);
  check_rank("broadcast", "root", root, state_->size);
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  run("broadcast", *state_, [&] { return state_->group->broadcast(tensors, options); });
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor) const {
  check_tensor("all_gather", tensor);
  std::vector<std::vector<at::Tensor>> outputs{space_for(tensor, state_->size)};
  std::vector<at::Tensor> inputs{tensor.detach()};
  run("all_gather", *state_, [&] { return state_->group->allgather(outputs, inputs); });
  return outputs[0];
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& tensor, int root) const {
  check_tensor("gather", tensor);
  check_rank("gather", "root", root, state_->size);
  if (state_->size == 1) return {tensor.detach().clone()};
  std::vector<std::vector<at::Tensor>> outputs;
  if (state_->rank == root) outputs.push_back(space_for(tensor, state_->size));
  std::vector<at::Tensor> inputs{tensor.detach()};
  c10d::GatherOptions options;
  options.rootRank = root;
  run("gather", *state_, [&] { return state_->group->gather(outputs, inputs, options); });
  return outputs.empty() ? std::vector<at::Tensor>() : outputs[0];
}

at::Tensor ProcessGroup::reduce_scatter(const at::Tensor& tensor, Reduce how) const {
  check_tensor("reduce_scatter", tensor);
  check_reduction("reduce_scatter", tensor, how);
  const int64_t ranks = state_->size;
  if (tensor.dim() == 0 || tensor.size(0) % ranks != 0) {
    throw ConfigError(c10::str("reduce_scatter: a tensor of sizes ", tensor.sizes(),
                               "; expected a first dimension that ", ranks,
                               " ranks can divide"));
  }
  if (ranks == 1) return tensor.detach().clone();
  // Each part goes to its rank, which reduces it: this sends as many bytes as a ring, works
  // on every backend, and has the same order on all ranks.
  at::Tensor input = tensor.detach();
  at::Tensor received = at::empty_like(input);
  std::vector<int64_t> even;
  run("reduce_scatter", *state_,
      [&] { return state_->group->alltoall_base(received, input, even, even); });
  std::vector<int64_t> rows = tensor.sizes().vec();
  rows[0] /= ranks;
  rows.insert(rows.begin(), ranks);
  at::Tensor part = reduce_rows(received.view(rows), how);
  return how == Reduce::mean ? part.div_(ranks) : part;
}

void ProcessGroup::send(const at::Tensor& tensor, int to) const {
  check_tensor("send", tensor);
  check_rank("send", "to", to, state_->size);
  if (to == state_->rank) throw ConfigError("send: to this rank itself; expected another");
  std::vector<at::Tensor> tensors{tensor.detach()};
  run(
      "send", *state_, [&] { return state_->group->send(tensors, to, 0); },
      message_limit(*state_));
}

void ProcessGroup::receive(at::Tensor tensor, int from) const {
  check_tensor("receive", tensor);
  check_rank("receive", "from", from, state_->size);
  if (from == state_->rank)
    throw ConfigError("receive: from this rank itself; expected another");
  std::vector<at::Tensor> tensors{std::move(tensor)};
  run(
      "receive", *state_, [&] { return state_->group->recv(tensors, from, 0); },
      message_limit(*state_));
}

// ---- numbers ----------------------------------------------------------------------------

namespace {

std::vector<double> reduce_numbers(const ProcessGroup& group, std::vector<double> values,
                                   Reduce how) {
  if (values.empty()) throw ConfigError("there are no numbers to reduce over the ranks");
  const auto device = group.works_on_device() ? at::kCUDA : at::kCPU;
  at::Tensor numbers = at::tensor(values, at::kDouble).to(device);
  group.all_reduce(numbers, how);
  numbers = numbers.cpu();
  const double* first = numbers.const_data_ptr<double>();
  return {first, first + values.size()};
}

}  // namespace

double ProcessGroup::sum(double value) const {
  return reduce_numbers(*this, {value}, Reduce::sum).front();
}
double ProcessGroup::mean(double value) const {
  return reduce_numbers(*this, {value}, Reduce::mean).front();
}
double ProcessGroup::min(double value) const {
  return reduce_numbers(*this, {value}, Reduce::min).front();
}
double ProcessGroup::max(double value) const {
  return reduce_numbers(*this, {value}, Reduce::max).front();
}
double ProcessGroup::mean(const at::Tensor& value) const {
  if (!value.defined() || value.numel() != 1)
    throw ConfigError("mean: expected a tensor with one element, such as a loss");
  return mean(value.item().toDouble());
}
std::vector<double> ProcessGroup::sum(std::vector<double> values) const {
  return reduce_numbers(*this, std::move(values), Reduce::sum);
}
std::vector<double> ProcessGroup::mean(std::vector<double> values) const {
  return reduce_numbers(*this, std::move(values), Reduce::mean);
}
bool ProcessGroup::any(bool mine) const { return max(mine ? 1.0 : 0.0) > 0; }
bool ProcessGroup::all(bool mine) const { return min(mine ? 1.0 : 0.0) > 0; }

void ProcessGroup::print(const char* format, ...) const {
  if (state_->rank != 0) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::fflush(stdout);
}

}  // namespace brigade
