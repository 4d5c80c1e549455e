// Uneven inputs. A rank is *active* while its loop runs and has *ended* afterwards. Every
// pass of an active rank begins with an all-reduce to which it adds one. A rank that has
// ended adds zero, reads from the sum how many are active, and *shadows* that pass: it
// issues the same collectives in order, with zeros. At a sum of zero all have ended.
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "ddp/core_state.h"

namespace brigade {
namespace {

c10::intrusive_ptr<c10d::Work> start_all_reduce(
    c10d::ProcessGroup& group, at::Tensor tensor,
    c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return group.allreduce(tensors, options);
}

[[noreturn]] void throw_uneven(const at::Tensor& ended) {
  std::string ranks;
  for (int64_t rank = 0; rank < ended.numel(); ++rank) {
    if (ended[rank].item<int>())
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  throw UnevenInputsError(
      "uneven inputs: no more on rank " + ranks +
      " while others have some; join() was told to stop all ranks then");
}

std::string text_of(const JoinOptions& options) {
  return c10::str("divide_by_initial_world_size ", options.divide_by_initial_world_size,
                  ", throw_on_early_termination ", options.throw_on_early_termination);
}

}  // namespace

at::Tensor DdpCore::State::sum_over_ranks(at::Tensor tensor) const {
  start_all_reduce(*collectives(), tensor)->wait();
  return tensor;
}

at::Tensor DdpCore::State::ended_ranks(bool self) const {
  at::Tensor ended = at::zeros({group.size()}, at::kInt).to(device());
  if (self) ended[group.rank()] = 1;
  return sum_over_ranks(ended).cpu();
}

void DdpCore::State::shadow_pass() {
  reducer->rebuild_buckets();
  check_same_layout();
  if (has_buffers_to_sync()) broadcast_buffers(agree_on_root(false));
  at::Tensor synchronising = at::zeros({1}, at::TensorOptions(device()));
  buffer_sync = sum_over_ranks(synchronising).item<float>() != 0;
  if (!buffer_sync) return;  // the active ranks only accumulate

  const bool first_of_static_graph = static_first_pass();
  auto match_used_map = [&] {
    sum_over_ranks(at::zeros_like(reducer->get_local_used_map_on_device()));
  };
  if (first_of_static_graph) match_used_map();  // in this pass it comes before the buckets
  if (hook) hook->begin_pass({.may_be_unused = may_leave_unused()});
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> results;
  for (c10d::GradBucket& bucket : reducer->get_grad_buckets()) {
    results.push_back(reducer->run_comm_hook(bucket));
  }
  for (auto& result : results) result->waitAndThrow();
  if (searches_graph()) match_used_map();
  if (first_of_static_graph) {
    static_first_pass_done = true;  // the order of arrival is known after the second pass
    joining->missed_static_first_pass = true;
  } else {
    reducer->push_rebuilt_params_for_all_indices();
  }
}

void DdpCore::State::announce_pass() {
  auto work = start_all_reduce(*collectives(), at::ones({1}, at::TensorOptions(device())));
  if (joining->options.throw_on_early_termination) {
    at::Tensor ended = ended_ranks(false);
    if (ended.any().item<bool>()) throw_uneven(ended);
  }
  reducer->set_forward_pass_work_handle(work,
                                        joining->options.divide_by_initial_world_size);
}

void DdpCore::State::announce_gradient_sync() {
  joining->notice = start_all_reduce(
      *collectives(), at::full({1}, syncs() ? 1.0F : 0.0F, at::TensorOptions(device())));
}

int DdpCore::State::agree_on_root(bool candidate) const {
  at::Tensor rank = at::full({1}, candidate ? group.rank() : -1, at::kInt).to(device());
  start_all_reduce(*collectives(), rank, c10d::ReduceOp::MAX)->wait();
  return rank.item<int>();
}

void DdpCore::join(const std::function<void()>& loop, const JoinOptions& options) {
  State& s = *state_;
  if (s.joining) throw ConfigError("join() was called inside of join()");
  if (s.low_precision && !options.divide_by_initial_world_size) {
    throw ConfigError(
        "join: divide_by_initial_world_size = false can't go with mixed_precision: buckets "
        "are averaged over the whole group there");
  }
  // Ranks that have no input at all take part too.
  s.group.check_same("options of join()", text_of(options),
                     "give join() the same options on every rank");
  s.check_same_hook();
  s.check_same_layout();
  s.joining = State::Joining{.options = options};
  auto leave = [&] {
    s.joining.reset();
    // Otherwise the Reducer would go on dividing by the last number of active ranks.
    if (s.reducer) s.reducer->set_forward_pass_work_handle(nullptr, true);
  };
  try {
    loop();
    bool last = true;  // this rank ended together with the last active one
    at::NoGradGuard no_grad;
    auto active_ranks = [&] {
      return s.sum_over_ranks(at::zeros({1}, at::TensorOptions(s.device()))).item<float>();
    };
    while (active_ranks() > 0) {
      if (options.throw_on_early_termination) throw_uneven(s.ended_ranks(true));
      s.shadow_pass();
      last = false;
    }
    s.restore_full_precision();
    s.broadcast_model(s.agree_on_root(last));
    // A rank that has not seen the graph cannot follow the others, so all record it again.
    if (s.options.static_graph &&
        s.agree_on_root(s.joining->missed_static_first_pass) >= 0) {
      s.make_reducer();
    }
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

}  // namespace brigade
