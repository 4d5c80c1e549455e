#include "zero/send.h"

#include <ATen/ATen.h>

#include <deque>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace brigade::optim {
namespace {

// Of a copy that is sent, unless a parameter is larger; memory on top of the model.
constexpr int64_t kMessageBytes = int64_t{8} << 20;
// Copies under way at once: while one is on the wire others are filled and emptied.
constexpr size_t kInFlight = 2;

}  // namespace

void FlatSender::lay_out(const std::vector<at::Tensor>& parameters,
                         const std::vector<int>& owners, bool views) {
  forget();
  flats_ = views ? make_flats(parameters, owners, INT64_MAX, INT64_MAX)
                 : make_flats(parameters, owners, kMessageBytes, kInPlaceBytes);
  for (const Flat& flat : flats_) {
    if (!views) break;
    buffers_.push_back(flat.empty());
    flat.settle_in(buffers_.back());
  }
}

bool FlatSender::laid_out() const {
  if (flats_.empty()) return false;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    for (const at::Tensor& parameter : flats_[i].parameters)
      if (!parameter.is_alias_of(buffers_[i])) return false;
  }
  return true;
}

// Large ones on the host go from rank to rank: Gloo's broadcasts are made by two threads,
// and wait for each other (16 of 4 MB between two ranks: 25 ms, and 16 directly). Every
// rank sends its own, so all have as much to do. Equal on all ranks.
bool FlatSender::directly(const Flat& flat) const {
  return group_.backend() == "gloo" && as_it_is(flat) && flat.parameters.front().is_cpu();
}

struct FlatSender::Sending {
  struct Message {
    const Flat* flat;
    at::Tensor tensor;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
  };
  std::deque<Message> under_way;
  size_t copies = 0;  // of them
};

void FlatSender::start(size_t index, Sending& sending) {
  const Flat& flat = flats_[index];
  Sending::Message message{&flat, buffers_.empty() ? flat.message() : buffers_[index], {}};
  if (!as_it_is(flat)) {
    ++sending.copies;
    if (mine(flat)) flat.read(message.tensor);
  }
  std::vector<at::Tensor> tensors{message.tensor};
  const auto tag = static_cast<int>(index);
  if (!directly(flat)) {
    c10d::BroadcastOptions options;
    options.rootRank = flat.owner;
    message.works.push_back(group_.c10d()->broadcast(tensors, options));
  } else if (mine(flat)) {
    for (int step = 1; step < group_.size(); ++step) {
      // Not all to the same at once.
      const int to = (group_.rank() + step) % group_.size();
      message.works.push_back(way(group_.rank(), to).send(tensors, to, tag));
    }
  } else {
    message.works.push_back(way(flat.owner, group_.rank()).recv(tensors, flat.owner, tag));
  }
  sending.under_way.push_back(std::move(message));
}

void FlatSender::send() {
  bool any_directly = false;
  for (const Flat& flat : flats_) any_directly = any_directly || directly(flat);
  for (ProcessGroup& each : direct_)
    if (any_directly && !each) each = group_.duplicate(group_.unique_name("zero"));

  Sending sending;
  const auto finish = [&](std::deque<Sending::Message>& messages) {
    const Sending::Message first = std::move(messages.front());
    messages.pop_front();
    for (const auto& work : first.works) work->wait();
    if (!as_it_is(*first.flat)) --sending.copies;
    if (!mine(*first.flat) && buffers_.empty()) first.flat->write(first.tensor);
  };
  // What comes to where it belongs may come at any time.
  for (size_t i = 0; i < flats_.size(); ++i)
    if (directly(flats_[i]) && !mine(flats_[i])) start(i, sending);
  std::deque<Sending::Message> incoming = std::move(sending.under_way);
  sending.under_way.clear();
  for (size_t i = 0; i < flats_.size(); ++i) {
    if (mine(flats_[i]) || !directly(flats_[i])) start(i, sending);
    while (sending.copies == kInFlight) finish(sending.under_way);
  }
  while (!sending.under_way.empty()) finish(sending.under_way);
  while (!incoming.empty()) finish(incoming);
}

}  // namespace brigade::optim
