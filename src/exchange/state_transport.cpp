#include "exchange/state_transport.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace brigade {
namespace {

// Writes a list of texts as one, each after its length.
class ListWriter {
 public:
  ListWriter& add(const std::string& text) {
    text_ += std::to_string(text.size()) + ":" + text;
    return *this;
  }
  ListWriter& add(int64_t number) { return add(std::to_string(number)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class ListReader {
 public:
  explicit ListReader(const std::string& text) : text_(text) {}
  bool more() const { return at_ < text_.size(); }
  std::string text() {
    const size_t colon = text_.find(':', at_);
    const size_t length = std::stoul(text_.substr(at_, colon - at_));
    at_ = colon + 1 + length;
    return text_.substr(colon + 1, length);
  }
  int64_t number() { return std::stoll(text()); }

 private:
  const std::string& text_;
  size_t at_ = 0;
};

// A tensor that a rank will send.
struct Announced {
  int to = 0;
  std::string key;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
};

std::string announce(const StateByRank& states) {
  ListWriter out;
  for (const auto& [to, state] : states) {
    out.add(to).add(static_cast<int64_t>(state.values.size()));
    for (const auto& [key, value] : state.values) out.add(key).add(value);
    out.add(static_cast<int64_t>(state.tensors.size()));
    for (const auto& [key, tensor] : state.tensors) {
      out.add(key).add(static_cast<int64_t>(tensor.scalar_type())).add(tensor.dim());
      for (const int64_t size : tensor.sizes()) out.add(size);
    }
  }
  return out.text();
}

// Returns the tensors announced by one rank, in the order in which it sends them. The
// values for `me` go into `state`.
std::vector<Announced> read_announced(const std::string& text, int me, NamedState& state) {
  std::vector<Announced> all;
  for (ListReader in(text); in.more();) {
    const int to = static_cast<int>(in.number());
    for (int64_t left = in.number(); left > 0; --left) {
      std::string key = in.text(), value = in.text();
      if (to == me) state.values[std::move(key)] = std::move(value);
    }
    for (int64_t left = in.number(); left > 0; --left) {
      Announced& each = all.emplace_back();
      each.to = to;
      each.key = in.text();
      each.dtype = static_cast<at::ScalarType>(in.number());
      each.sizes.resize(static_cast<size_t>(in.number()));
      for (int64_t& size : each.sizes) size = in.number();
    }
  }
  return all;
}

// Sends tensors from rank to rank: Gloo sends host memory, NCCL the device's.
class StateTransport {
 public:
  explicit StateTransport(const ProcessGroup& group)
      : group_(group), on_host_(!group.works_on_device()) {}

  void send(const at::Tensor& tensor, int to) const {
    at::Tensor staged = tensor.detach().contiguous();
    if (on_host_) staged = staged.cpu();
    if (staged.numel() == 0) return;
    std::vector<at::Tensor> tensors{staged};
    group_.c10d()->send(tensors, to, 0)->wait();
  }
  at::Tensor receive(const Announced& what, int from, at::Device device) const {
    at::Tensor staged = at::empty(
        what.sizes, at::TensorOptions(what.dtype).device(on_host_ ? at::kCPU : here()));
    if (staged.numel() > 0) {
      std::vector<at::Tensor> tensors{staged};
      group_.c10d()->recv(tensors, from, 0)->wait();
    }
    return staged.to(device);
  }

 private:
  static at::Device here() { return at::Device(at::kCUDA); }
  const ProcessGroup& group_;
  const bool on_host_;
};

}  // namespace

NamedState exchange_states(const ProcessGroup& group, const StateByRank& mine,
                           at::Device device) {
  const int me = group.rank();
  NamedState state;
  if (const auto own = mine.find(me); own != mine.end())
    state.tensors = own->second.tensors;
  const auto texts = group.gather_texts("optimizer state", announce(mine));
  const StateTransport transport(group);
  // Ranks send one after the other, in the same order on all ranks.
  for (int from = 0; from < group.size(); ++from) {
    for (const Announced& each :
         read_announced(texts[static_cast<size_t>(from)], me, state)) {
      if (each.to == from) continue;
      if (from == me) transport.send(mine.at(each.to).tensors.at(each.key), each.to);
      if (each.to == me) state.tensors[each.key] = transport.receive(each, from, device);
    }
  }
  return state;
}

}  // namespace brigade
