#include "exchange/flat_sender.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace brigade {
namespace {

// The size of a copy that is sent, unless a parameter is larger. It is memory on top of the
// model.
constexpr int64_t kMessageBytes = int64_t{8} << 20;
// Copies under way at once: while one is on the wire others are filled and emptied.
constexpr size_t kInFlight = 2;

}  // namespace

struct FlatSender::Message {
  const FlatBuffer* buffer;
  at::Tensor tensor;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
};

struct FlatSender::Sending {
  std::deque<Message> under_way;
  size_t copies = 0;  // of them
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

// Large ones on the host go from rank to rank: Gloo's broadcasts are made by two threads,
// and wait for each other (16 of 4 MB between two ranks: 25 ms, and 16 directly). Every
// rank sends its own, so all have as much to do. Equal on all ranks.
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
      // Not all ranks send to the same one at once.
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
  // A message that is received where it belongs needs no order: all may come at any time.
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
