#include "elastic/state_transfer.h"

#include <ATen/ATen.h>

#include <cstring>

#include "base/hash.h"
#include "brigade/error.h"
#include "engine/replica_hashes.h"

namespace brigade::elastic {
namespace {

// Tensors up to this size are packed; larger ones are sent in chunks from where they are.
constexpr int64_t kPacked = 1 << 18;
constexpr int64_t kPiece = int64_t{64} << 20;

class Writer {
 public:
  void number(int64_t value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    number(static_cast<int64_t>(value.size()));
    text_ += value;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : rest_(text) {}
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(bytes(static_cast<size_t>(number()))); }

 private:
  std::string_view bytes(size_t count) {
    if (count > rest_.size()) throw Error("elastic: the state that came is cut off");
    const auto found = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return found;
  }
  std::string_view rest_;
};

// Describes names, values, dtypes and sizes: everything except the tensors' bytes.
std::string describe_states(const States& states) {
  Writer out;
  out.number(static_cast<int64_t>(states.size()));
  for (const auto& [name, state] : states) {
    out.text(name);
    out.number(static_cast<int64_t>(state.values.size()));
    for (const auto& [key, value] : state.values) out.text(key), out.text(value);
    out.number(static_cast<int64_t>(state.tensors.size()));
    for (const auto& [key, tensor] : state.tensors) {
      out.text(key);
      out.number(static_cast<int64_t>(tensor.scalar_type()));
      out.number(tensor.dim());
      for (const int64_t size : tensor.sizes()) out.number(size);
    }
  }
  return out.take();
}

States make_states(const std::string& description) {
  Reader in(description);
  States states;
  for (int64_t parts = in.number(); parts > 0; --parts) {
    PartState& state = states[in.text()];
    for (int64_t count = in.number(); count > 0; --count) {
      std::string key = in.text();
      state.values[std::move(key)] = in.text();
    }
    for (int64_t count = in.number(); count > 0; --count) {
      std::string key = in.text();
      const auto dtype = static_cast<at::ScalarType>(in.number());
      std::vector<int64_t> sizes(static_cast<size_t>(in.number()));
      for (int64_t& size : sizes) size = in.number();
      state.tensors[std::move(key)] = at::empty(sizes, dtype);
    }
  }
  return states;
}

std::string broadcast_text(const ProcessGroup& group, int source, std::string text) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  group.broadcast(length, source);
  text.resize(static_cast<size_t>(length.item<int64_t>()));
  if (text.empty()) return text;
  group.broadcast(
      at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte), source);
  return text;
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), {static_cast<int64_t>(tensor.nbytes())},
                       at::kByte);
}

void broadcast_packed(const ProcessGroup& group, int source,
                      const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(bytes_of(tensor));
  if (bytes.empty()) return;
  at::Tensor together = at::cat(bytes);
  group.broadcast(together, source);
  if (group.rank() == source) return;
  int64_t begin = 0;
  for (at::Tensor& part : bytes) {
    part.copy_(together.narrow(0, begin, part.numel()));
    begin += part.numel();
  }
}

// Reports how much of a state has been sent.
class Progress {
 public:
  Progress(int64_t all, bool says) : all_(all), says_(says) {}
  void add(int64_t bytes) {
    sent_ += bytes;
    if (!says_ || sent_ * 10 / all_ == told_) return;
    told_ = sent_ * 10 / all_;
    std::fprintf(stderr, "brigade: %.1f of %.1f GB of state handed over\n",
                 static_cast<double>(sent_) / 1e9, static_cast<double>(all_) / 1e9);
  }

 private:
  const int64_t all_;
  const bool says_;
  int64_t sent_ = 0;
  int64_t told_ = 0;
};

}  // namespace

States hand_over(const ProcessGroup& group, int source, const States& mine, int64_t& bytes,
                 int64_t large_state) {
  const bool sends = group.rank() == source;
  const std::string description =
      broadcast_text(group, source, sends ? describe_states(mine) : std::string());
  States states = sends ? mine : make_states(description);
  bytes = static_cast<int64_t>(description.size());
  std::vector<at::Tensor> small, large;
  for (auto& [name, state] : states) {
    for (auto& [key, tensor] : state.tensors) {
      if (sends) tensor = tensor.detach().cpu().contiguous();
      bytes += static_cast<int64_t>(tensor.nbytes());
      if (tensor.nbytes() == 0) continue;
      (static_cast<int64_t>(tensor.nbytes()) > kPacked ? large : small).push_back(tensor);
    }
  }
  broadcast_packed(group, source, small);
  Progress progress(bytes, sends && bytes >= large_state);
  for (const at::Tensor& tensor : large) {
    const at::Tensor all = bytes_of(tensor);
    for (int64_t begin = 0; begin < all.numel(); begin += kPiece) {
      const int64_t length = std::min(kPiece, all.numel() - begin);
      group.broadcast(all.narrow(0, begin, length), source);
      progress.add(length);
    }
  }
  return states;
}

std::string hash_of(const States& states) {
  std::vector<at::Tensor> tensors;
  // Takes values in logical order: received tensors may have another memory layout.
  for (const auto& [name, state] : states)
    for (const auto& [key, tensor] : state.tensors)
      tensors.push_back(tensor.detach().contiguous());
  return std::to_string(base::hash64(describe_states(states))) + "." +
         std::to_string(engine::hash_of(engine::hash_tensors(tensors)));
}

}  // namespace brigade::elastic
