#include "exchange/flat_buffer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>

namespace brigade {
namespace {

// A parameter's part of `flat`, in the parameter's shape.
at::Tensor part_like(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) {
    return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
  }
  return flat.as_strided(parameter.sizes(), parameter.strides(),
                         flat.storage_offset() + offset);
}

Task<void> share_flat_buffer(const FlatBuffer& flat, Comm& comm,
                             const PrepareBuffer& prepare) {
  prepare(flat);
  at::Tensor message = flat.message();
  const bool mine = flat.owner == comm.rank();
  if (mine) flat.read(message);
  co_await comm.broadcast(message, flat.owner);
  if (!mine) flat.write(message);
}

}  // namespace

at::Tensor flat_view(const at::Tensor& parameter) {
  return parameter.detach().as_strided({parameter.numel()}, {1});
}

at::Tensor FlatBuffer::empty() const {
  return at::empty({length}, at::TensorOptions(parameters.front().options())
                                 .requires_grad(false)
                                 .memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor FlatBuffer::message() const {
  return in_place ? flat_view(parameters.front()) : empty();
}

void FlatBuffer::read(at::Tensor message) const {
  if (in_place) return;
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    part_like(message, offset, parameter).copy_(parameter.detach());
    offset += parameter.numel();
  }
}

void FlatBuffer::write(const at::Tensor& message) const {
  if (in_place) {
    // Autograd detects by the version that a value it saved has changed.
    parameters.front().unsafeGetTensorImpl()->bump_version();
    return;
  }
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.detach().copy_(part_like(message, offset, parameter));
    offset += parameter.numel();
  }
}

void FlatBuffer::move_into(at::Tensor memory) const {
  read(memory);
  int64_t offset = 0;
  for (at::Tensor parameter : parameters) {
    parameter.set_data(part_like(memory, offset, parameter));
    offset += parameter.numel();
  }
}

std::vector<FlatBuffer> make_flat_buffers(const std::vector<at::Tensor>& parameters,
                                          const std::vector<int>& owners, int64_t most,
                                          int64_t alone) {
  using Kind = std::tuple<int, at::ScalarType, std::string>;
  std::map<Kind, size_t> open;  // the buffer that takes parameters of a kind
  std::vector<FlatBuffer> buffers;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (parameter.is_cpu() && parameter.is_non_overlapping_and_dense() &&
        static_cast<int64_t>(parameter.nbytes()) >= alone) {
      buffers.push_back({owners[i], {parameter}, parameter.numel(), /*in_place=*/true});
      continue;
    }
    const Kind kind{owners[i], parameter.scalar_type(), parameter.device().str()};
    const int64_t most_elements = most / static_cast<int64_t>(parameter.dtype().itemsize());
    const auto found = open.find(kind);
    if (found == open.end() ||
        buffers[found->second].length + parameter.numel() > most_elements) {
      open[kind] = buffers.size();
      buffers.push_back({.owner = owners[i], .parameters = {}});
    }
    FlatBuffer& flat = buffers[open[kind]];
    flat.parameters.push_back(parameter);
    flat.length += parameter.numel();
  }
  return buffers;
}

Task<void> share_flat_buffers(std::vector<FlatBuffer> buffers, Comm& comm,
                              PrepareBuffer prepare) {
  if (comm.runs_inline()) {
    // With NCCL, later work of the stream waits for a broadcast.
    for (const FlatBuffer& buffer : buffers) prepare(buffer);
    prepare = [](const FlatBuffer&) {};
  }
  if (comm.size() == 1) co_return;
  co_await comm.split(static_cast<int>(buffers.size()), [&](int index, Comm& lane) {
    return share_flat_buffer(buffers[static_cast<size_t>(index)], lane, prepare);
  });
}

namespace {

// The size of a message copy, unless a parameter is larger. It is memory in addition to the
// model.
constexpr int64_t kMessageBytes = int64_t{8} << 20;
// Copies under way at once: while one is on the wire, the other is filled or read.
constexpr size_t kInFlight = 2;

}  // namespace

struct FlatSender::Message {
  const FlatBuffer* buffer;
  at::Tensor tensor;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
};

struct FlatSender::Sending {
  std::deque<Message> under_way;
  size_t copies = 0;  // of all messages that are copies
};

void FlatSender::lay_out(const std::vector<at::Tensor>& parameters,
                         const std::vector<int>& owners, bool views) {
  clear();
  buffers_ = views ? make_flat_buffers(parameters, owners, INT64_MAX, INT64_MAX)
                   : make_flat_buffers(parameters, owners, kMessageBytes, kInPlaceBytes);
  if (!views) return;
  for (const FlatBuffer& buffer : buffers_) {
    memory_.push_back(buffer.empty());
    buffer.move_into(memory_.back());
  }
}

bool FlatSender::laid_out() const {
  if (buffers_.empty()) return false;
  for (size_t i = 0; i < memory_.size(); ++i) {
    for (const at::Tensor& parameter : buffers_[i].parameters)
      if (!parameter.is_alias_of(memory_[i])) return false;
  }
  return true;
}

// Whether a buffer is sent point to point: large ones on the host are. Gloo's broadcasts
// use two threads, which wait for each other (16 of 4 MB between two ranks: 25 ms, and 16
// directly). Every rank sends its own, so the work is even. Equal on all ranks.
bool FlatSender::rank_to_rank(const FlatBuffer& buffer) const {
  return group_.size() > 1 && !needs_copy(buffer) && buffer.parameters.front().is_cpu();
}

void FlatSender::make_channels() {
  const bool needed =
      std::any_of(buffers_.begin(), buffers_.end(),
                  [&](const FlatBuffer& buffer) { return rank_to_rank(buffer); });
  for (ProcessGroup& each : channels_)
    if (needed && !each) each = group_.duplicate(group_.unique_name("zero"));
}

void FlatSender::start(size_t index, Sending& sending) const {
  const FlatBuffer& buffer = buffers_[index];
  Message message{&buffer, memory_.empty() ? buffer.message() : memory_[index], {}};
  if (needs_copy(buffer)) {
    ++sending.copies;
    if (mine(buffer)) buffer.read(message.tensor);
  }
  std::vector<at::Tensor> tensors{message.tensor};
  const auto tag = static_cast<int>(index);
  if (!rank_to_rank(buffer)) {
    c10d::BroadcastOptions options;
    options.rootRank = buffer.owner;
    message.works.push_back(group_.c10d()->broadcast(tensors, options));
  } else if (mine(buffer)) {
    for (int step = 1; step < group_.size(); ++step) {
      // In each step, ranks send to different ranks.
      const int to = (group_.rank() + step) % group_.size();
      message.works.push_back(channel(group_.rank(), to).send(tensors, to, tag));
    }
  } else {
    const int from = buffer.owner;
    message.works.push_back(channel(from, group_.rank()).recv(tensors, from, tag));
  }
  sending.under_way.push_back(std::move(message));
}

void FlatSender::finish_first(std::deque<Message>& messages, Sending& sending) const {
  const Message first = std::move(messages.front());
  messages.pop_front();
  for (const auto& work : first.works) work->wait();
  if (needs_copy(*first.buffer)) --sending.copies;
  if (!mine(*first.buffer) && memory_.empty()) first.buffer->write(first.tensor);
}

void FlatSender::send() {
  make_channels();
  Sending sending;
  // Messages into their final memory need no order, so all receives start at once.
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (rank_to_rank(buffers_[i]) && !mine(buffers_[i])) start(i, sending);
  std::deque<Message> incoming = std::move(sending.under_way);
  sending.under_way.clear();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (mine(buffers_[i]) || !rank_to_rank(buffers_[i])) start(i, sending);
    while (sending.copies == kInFlight) finish_first(sending.under_way, sending);
  }
  while (!sending.under_way.empty()) finish_first(sending.under_way, sending);
  while (!incoming.empty()) finish_first(incoming, sending);
}

}  // namespace brigade
