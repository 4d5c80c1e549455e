#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <variant>

#include "brigade/compose_hooks.h"
#include "brigade/hook.h"
#include "engine/bucket_run.h"
#include "engine/comm/all_to_all_messages.h"
#include "engine/comm/lane.h"
#include "engine/engine.h"
#include "torch_port/typed_wait.h"

namespace brigade {

using engine::Clock;
using engine::kStations;
using engine::Order;
using Work = c10::intrusive_ptr<c10d::Work>;

namespace {

using AllToAllMessagesPtr = std::shared_ptr<engine::AllToAllMessages>;
// A started collective: a c10d Work, or our own point-to-point transfers.
using Started = std::variant<Work, AllToAllMessagesPtr>;

}  // namespace

struct Collective::Operation {
  Comm::Lane& lane;
  int64_t bytes_sent;
  int64_t bytes_away;  // the share that goes to other hosts
  // Starts the collective. If empty, the coroutine only moves on by `stations`.
  std::function<Started(c10d::ProcessGroup&)> issue;
  // Copies results that were staged in host memory to the caller's tensor.
  std::function<void()> unstage;
  int channel = 0;  // the station's connection that it uses
  int stations = 1;
  Started started;
  Clock::time_point issued;
  c10d::ProcessGroup* group = nullptr;  // the station's own, once it has started

  // Turns LibTorch's errors in `body` into our types.
  template <class Body>
  void typed(Body body) const {
    try {
      body();
    } catch (const std::exception& error) {
      torch_port::rethrow_typed(
          error, *group, [this](int rank) { return lane.group().number_in_job(rank); });
    }
  }
  void start() {
    if (!issue) return;
    issued = Clock::now();
    group = &lane.run.engine->station_group(lane.station, lane.over, channel);
    typed([this] { started = issue(*group); });
    lane.run.cost.issued(lane.label, bytes_sent, bytes_away);
  }
  void finish() {
    // The collective is complete by now: wait() throws its error and orders the current
    // stream behind it.
    if (issue)
      typed([this] { std::visit([](const auto& running) { running->wait(); }, started); });
    const engine::DevicePoint arrived = lane.run.device_point();
    if (lane.run.engine->runs_inline()) lane.begin_stage_inline();
    if (!issue) return;
    if (lane.run.engine->runs_inline()) {
      lane.run.note(TraceEvent::Kind::collective, lane.station - 1, lane.order, lane.ended,
                    arrived, bytes_sent);
      lane.run.note(TraceEvent::Kind::collective, lane.station - 1, lane.order, issued,
                    bytes_sent);
    } else if (const auto* transfers = std::get_if<AllToAllMessagesPtr>(&started)) {
      lane.run.note(TraceEvent::Kind::collective, lane.station - 1, lane.order, issued,
                    bytes_sent, (*transfers)->completed_at());
    }
    if (unstage) unstage();
    lane.run.cost.waited(lane.label, issued);
  }
};

Collective::Collective(std::unique_ptr<Operation> operation)
    : operation_(std::move(operation)) {}
Collective::Collective(Collective&&) noexcept = default;
Collective::~Collective() = default;

bool Collective::await_ready() {
  if (!operation_) return true;  // there is nothing to send
  if (!operation_->lane.run.engine->runs_inline()) return false;
  operation_->start();
  operation_->lane.end_stretch_inline();
  operation_->lane.station += static_cast<size_t>(operation_->stations);
  return true;
}

void Collective::await_suspend(std::coroutine_handle<> waiting) {
  Comm::Lane& lane = operation_->lane;
  const auto stations = static_cast<size_t>(operation_->stations);
  if (lane.station + stations >= kStations) {
    throw Error("a hook may await at most " + std::to_string(kStations - 1) +
                " collectives one after the other; use split() for more");
  }
  operation_->start();
  if (stations > 1)
    lane.run.pipeline->pass(lane.order, lane.station + 1, lane.station + stations);
  for (size_t count = 0; count < stations; ++count) lane.move_on();
  const size_t next = lane.station;
  if (!operation_->issue) return lane.run.resume_at(next, lane.order, waiting);
  const Started& started = operation_->started;
  if (const auto* transfers = std::get_if<AllToAllMessagesPtr>(&started))
    return lane.run.resume_at(next, lane.order, waiting, *transfers);
  const auto future = std::get<Work>(started)->getFuture();
  const auto issued = operation_->issued;
  const int64_t bytes = operation_->bytes_sent;
  // From here on another thread may resume the coroutine, which owns *this, so the callback
  // uses copies only.
  future->addCallback([run = lane.run.shared_from_this(), next, order = lane.order, waiting,
                       issued, bytes](c10::ivalue::Future&) {
    run->note(TraceEvent::Kind::collective, next - 1, order, issued, bytes);
    run->resume_at(next, order, waiting);
  });
}

void Collective::await_resume() {
  if (operation_) operation_->finish();
}

namespace {

void check(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), what, ": undefined tensor");
  TORCH_CHECK(tensor.is_sparse() || tensor.is_contiguous(), what, ": tensor of shape ",
              tensor.sizes(), " and strides ", tensor.strides(),
              " is not contiguous; call .contiguous() first");
}

void check_parts(const char* what, const at::Tensor& whole, const at::Tensor& part,
                 int parts) {
  check(what, whole);
  check(what, part);
  TORCH_CHECK(whole.dtype() == part.dtype(), what, ": dtypes differ: ", whole.dtype(),
              " and ", part.dtype());
  TORCH_CHECK(whole.numel() == parts * part.numel(), what, ": ", whole.numel(),
              " elements are not ", parts, " times ", part.numel());
}

// `lengths` has the length of each rank's part.
void check_lengths(const char* what, const at::Tensor& tensor,
                   const std::vector<int64_t>& lengths, int ranks) {
  check(what, tensor);
  int64_t sum = 0;
  for (const int64_t length : lengths) {
    TORCH_CHECK(length >= 0, what, ": a part has the length ", length);
    sum += length;
  }
  TORCH_CHECK(lengths.size() == static_cast<size_t>(ranks) && sum == tensor.numel(), what,
              " has ", tensor.numel(), " elements for ", ranks, " ranks, but there are ",
              lengths.size(), " lengths of ", sum, " in all");
}

using engine::payload_bytes;

// Gloo works on host memory; device tensors are copied there, into memory that the device
// reads and writes at full speed.
bool is_staged(const at::Tensor& tensor, const engine::Engine& engine) {
  return !tensor.is_cpu() && !engine.runs_inline();
}

at::Tensor empty_on_host(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

at::Tensor on_host(const at::Tensor& tensor, const engine::Engine& engine) {
  if (!is_staged(tensor, engine)) return tensor;
  if (tensor.is_sparse()) return tensor.cpu();
  return empty_on_host(tensor).copy_(tensor);
}

std::function<void()> copy_back(const at::Tensor& staged, const at::Tensor& tensor) {
  if (staged.is_same(tensor)) return {};
  // The allocator keeps the staged memory until the device has read it.
  return [staged, tensor] { at::Tensor(tensor).copy_(staged, /*non_blocking=*/true); };
}

}  // namespace

Comm::Comm(std::unique_ptr<Lane> lane) : lane_(std::move(lane)) {}
Comm::~Comm() = default;
int Comm::rank() const { return lane_->group().rank(); }
int Comm::size() const { return lane_->group().size(); }
const std::string& Comm::backend() const { return lane_->group().backend(); }
bool Comm::works_on_device() const { return lane_->group().works_on_device(); }
bool Comm::runs_inline() const { return lane_->run.engine->runs_inline(); }
const HostLayout& Comm::layout() const { return lane_->group().layout(); }
ProcessGroup Comm::host_group() const { return lane_->run.engine->host_group(lane_->over); }
ProcessGroup Comm::peer_group() const { return lane_->run.engine->peer_group(lane_->over); }
int64_t Comm::step() const { return lane_->run.step; }
int Comm::collectives_so_far() const { return static_cast<int>(lane_->station); }

Collective Comm::skip(int count) {
  TORCH_CHECK(count >= 0, "skip: ", count, " collectives, expected 0 or more");
  if (count == 0) return Collective(nullptr);
  std::unique_ptr<Collective::Operation> operation(
      new Collective::Operation{*lane_, 0, 0, {}, {}});
  operation->stations = count;
  return Collective(std::move(operation));
}

namespace {

// The bytes to other hosts if a rank sends everything to its neighbour, as in a ring.
int64_t away_in_ring(const HostLayout& layout, int neighbour, int64_t bytes) {
  const auto ranks = static_cast<int>(layout.host_of.size());
  const auto to = static_cast<size_t>((neighbour + ranks) % ranks);
  return layout.host_of[to] == layout.host ? 0 : bytes;
}

}  // namespace

Collective Comm::all_reduce(at::Tensor tensor) {
  check("all_reduce", tensor);
  if (!tensor.is_sparse() && tensor.numel() == 0) return Collective(nullptr);
  at::Tensor staged = on_host(tensor, *lane_->run.engine);
  const int64_t sent = 2 * payload_bytes(tensor) * (size() - 1) / size();
  return Collective(std::unique_ptr<Collective::Operation>(
      new Collective::Operation{*lane_, sent, away_in_ring(layout(), rank() - 1, sent),
                                [staged](c10d::ProcessGroup& group) {
                                  std::vector<at::Tensor> tensors{staged};
                                  return group.allreduce(tensors);
                                },
                                copy_back(staged, tensor)}));
}

namespace {

// Starts a collective from one tensor to another; both are flat and, for Gloo, in host
// memory.
using Transfer =
    std::function<Started(c10d::ProcessGroup&, at::Tensor& to, at::Tensor& from)>;

Collective transfer(Comm::Lane& lane, const at::Tensor& input, const at::Tensor& output,
                    int64_t bytes_sent, int64_t bytes_away, Transfer issue) {
  if (input.numel() == 0 && output.numel() == 0) return Collective(nullptr);
  const engine::Engine& engine = *lane.run.engine;
  at::Tensor from = on_host(input, engine).flatten();
  at::Tensor to = is_staged(output, engine) ? empty_on_host(output) : output;
  return Collective(std::unique_ptr<Collective::Operation>(new Collective::Operation{
      lane, bytes_sent, bytes_away,
      [from, flat = to.flatten(), issue = std::move(issue)](
          c10d::ProcessGroup& group) mutable { return issue(group, flat, from); },
      copy_back(to, output)}));
}

// `to` and `from` are the numbers of elements sent to each rank and received from it.
Collective exchange(Comm::Lane& lane, const at::Tensor& input, std::vector<int64_t> to,
                    const at::Tensor& output, std::vector<int64_t> from) {
  const HostLayout& layout = lane.group().layout();
  int64_t sent = 0, away = 0;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    if (static_cast<int>(rank) == lane.group().rank()) continue;
    sent += to[rank];
    if (layout.host_of[rank] != layout.host) away += to[rank];
  }
  const auto size = static_cast<int64_t>(input.element_size());
  const bool runs_inline = lane.run.engine->runs_inline();
  return transfer(
      lane, input, output, sent * size, away * size,
      [to = std::move(to), from = std::move(from), runs_inline,
       limit = lane.group().timeout()](c10d::ProcessGroup& group, at::Tensor& output,
                                       at::Tensor& input) mutable -> Started {
        if (runs_inline) return group.alltoall_base(output, input, from, to);
        return engine::AllToAllMessages::start(group, input, to, output, from, limit);
      });
}

}  // namespace

Collective Comm::all_gather(at::Tensor input, at::Tensor output) {
  check_parts("all_gather", output, input, size());
  const int64_t sent = payload_bytes(input) * (size() - 1);
  return transfer(*lane_, input, output, sent, away_in_ring(layout(), rank() + 1, sent),
                  [](c10d::ProcessGroup& group, at::Tensor& to, at::Tensor& from) {
                    return group._allgather_base(to, from);
                  });
}

Collective Comm::all_to_all(at::Tensor input, at::Tensor output) {
  check_parts("all_to_all", input, output, 1);
  TORCH_CHECK(input.numel() % size() == 0, "all_to_all: ", input.numel(),
              " elements can't be divided among ", size(), " ranks");
  const std::vector<int64_t> parts(static_cast<size_t>(size()), input.numel() / size());
  return exchange(*lane_, input, parts, output, parts);
}

Collective Comm::all_to_all(at::Tensor input, std::vector<int64_t> to, at::Tensor output,
                            std::vector<int64_t> from) {
  check_lengths("all_to_all: input", input, to, size());
  check_lengths("all_to_all: output", output, from, size());
  TORCH_CHECK(input.dtype() == output.dtype(), "all_to_all: dtypes differ: ", input.dtype(),
              " and ", output.dtype());
  return exchange(*lane_, input, std::move(to), output, std::move(from));
}

Collective Comm::all_to_others(at::Tensor input, at::Tensor output) {
  check_parts("all_to_others", input, output, 1);
  const int others = size() - 1;
  TORCH_CHECK(others > 0 && input.numel() % others == 0, "all_to_others: ", input.numel(),
              " elements can't be divided among ", others, " other ranks");
  std::vector<int64_t> parts(static_cast<size_t>(size()), input.numel() / others);
  parts[static_cast<size_t>(rank())] = 0;
  return exchange(*lane_, input, parts, output, parts);
}

Collective Comm::broadcast(at::Tensor tensor, int root) {
  check("broadcast", tensor);
  TORCH_CHECK(root >= 0 && root < size(), "broadcast: root ", root, " is not a rank of ",
              size());
  if (tensor.numel() == 0) return Collective(nullptr);
  at::Tensor staged = on_host(tensor, *lane_->run.engine);
  const int64_t sent = rank() == root ? payload_bytes(tensor) : 0;
  return Collective(std::unique_ptr<Collective::Operation>(
      new Collective::Operation{*lane_, sent, layout().hosts() > 1 ? sent : 0,
                                [staged, root](c10d::ProcessGroup& group) {
                                  std::vector<at::Tensor> tensors{staged};
                                  c10d::BroadcastOptions options;
                                  options.rootRank = root;
                                  return group.broadcast(tensors, options);
                                },
                                copy_back(staged, tensor),
                                // Gloo does not read and write a connection at once: 16
                                // broadcasts of 4 MB, alternately from two ranks, took 20
                                // and 27 ms on one connection and 19 on two.
                                root % 2}));
}

Task<void> Comm::reduce_scatter(at::Tensor input, at::Tensor output) {
  check_parts("reduce_scatter", input, output, size());
  // Gloo's own reduce-scatter is an all-reduce that discards most of the result.
  at::Tensor parts = at::empty_like(input);
  co_await all_to_all(input, parts);
  at::Tensor sum = output.view({-1});
  at::sum_out(sum, parts.view({size(), -1}), 0);
}

void Comm::Lane::begin_stage_inline() {
  if (!run.device_lanes) return;
  run.device_lanes->begin_stage(station);
  began = run.device_point();
}

void Comm::Lane::end_stretch_inline() {
  if (!run.device_lanes) return;
  run.device_lanes->end_stage(station);
  ended = run.device_point();
  run.note(TraceEvent::Kind::compute, station, order, began, ended);
}

GroupScope::GroupScope(Comm& comm, ProcessGroup group)
    : comm_(comm), before_(std::exchange(Comm::Lane::of(comm).over, std::move(group))) {}

GroupScope::~GroupScope() { Comm::Lane::of(comm_).over = std::move(before_); }

}  // namespace brigade
