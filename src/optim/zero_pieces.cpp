#include "optim/zero_pieces.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

#include "optim/zero_flat.h"
#include "optim/zero_text.h"

namespace brigade::optim {
namespace {

// By "group.N/NAME": what a key has before its last dot.
std::unordered_map<std::string, const CutParameter*> by_key(
    const std::vector<CutParameter>& parameters) {
  std::unordered_map<std::string, const CutParameter*> found;
  for (const CutParameter& each : parameters)
    found[group_prefix(each.group()) + each.name()] = &each;
  return found;
}

// Exchanges each tensor of `state` that belongs to a parameter.
template <class Change>
OptimizerState change_tensors(OptimizerState state,
                              const std::vector<CutParameter>& parameters,
                              const Change& change) {
  const auto owners = by_key(parameters);
  for (auto& [key, tensor] : state.tensors) {
    const auto owner = owners.find(key.substr(0, key.rfind('.')));
    if (owner != owners.end()) tensor = change(key, tensor, *owner->second);
  }
  return state;
}

[[noreturn]] void refuse(const std::string& key, const at::Tensor& tensor,
                         int64_t expected) {
  throw ConfigError(c10::str("ZeRO: '", key, "' has ", tensor.numel(),
                             " elements, but the parameter needs ", expected));
}

}  // namespace

Range piece_of(int64_t n, size_t index, int rank, int ranks) {
  const auto shift = static_cast<int64_t>(index % static_cast<size_t>(ranks));
  const int64_t piece = (rank + ranks - shift) % ranks;
  const int64_t begin = n * piece / ranks;
  return {begin, n * (piece + 1) / ranks - begin};
}

CutParameter::CutParameter(std::string name, at::Tensor parameter, size_t index,
                           size_t group, int ranks)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      index_(index),
      group_(group),
      pieces_(static_cast<size_t>(ranks)) {
  const at::Tensor flat = flat_view(parameter_);
  for (int rank = 0; rank < ranks; ++rank) {
    const Range range = this->range(rank);
    pieces_[static_cast<size_t>(rank)] = flat.narrow(0, range.begin, range.length);
  }
}

const at::Tensor& CutParameter::piece(int rank) const {
  const at::Tensor& piece = pieces_[static_cast<size_t>(rank)];
  if (!piece.is_alias_of(parameter_)) {
    // Somebody gave the parameter other memory. The optimizer knows the piece by its
    // identity, which stays.
    const Range range = this->range(rank);
    at::Tensor(piece).set_data(flat_view(parameter_).narrow(0, range.begin, range.length));
  }
  return piece;
}

PieceLayout::PieceLayout(std::vector<Item> items, int ranks)
    : items_(std::move(items)), ranks_(ranks), filled_(static_cast<size_t>(ranks)) {
  for (const Item& item : items_) {
    for (int rank = 0; rank < ranks; ++rank)
      filled_[static_cast<size_t>(rank)] += item.parameter->range(rank).length;
  }
  for (const int64_t filled : filled_) length_ = std::max(length_, filled);
}

at::Tensor PieceLayout::chunk(const at::Tensor& chunks, int rank) const {
  return chunks.narrow(0, rank * length_, length_);
}

void PieceLayout::read_gradients(const at::Tensor& bucket, int me,
                                 at::Tensor chunks) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == me) continue;
    std::vector<at::Tensor> parts;
    for (const Item& item : items_) {
      const Range range = item.parameter->range(rank);
      if (range.length > 0)
        parts.push_back(bucket.narrow(0, item.offset + range.begin, range.length));
    }
    const int64_t rest = length_ - filled_[static_cast<size_t>(rank)];
    if (rest > 0) parts.push_back(at::zeros({rest}, bucket.options()));
    at::Tensor to = chunk(chunks, rank);
    at::cat_out(to, parts);
  }
}

void PieceLayout::average(const at::Tensor& bucket, at::Tensor chunks, int me, bool divided,
                          at::Tensor mean) const {
  if (bucket.is_cpu() && bucket.scalar_type() == at::kFloat && !divided) {
    average_floats(bucket, chunks, me, mean);
    return;
  }
  at::Tensor own = chunk(chunks, me);
  int64_t at = 0;
  for (const Item& item : items_) {
    const Range range = item.parameter->range(me);
    own.narrow(0, at, range.length)
        .copy_(bucket.narrow(0, item.offset + range.begin, range.length));
    at += range.length;
  }
  if (divided) own.div_(ranks_);
  mean.copy_(chunk(chunks, 0));
  for (int rank = 1; rank < ranks_; ++rank) mean.add_(chunk(chunks, rank));
  if (!divided) mean.div_(ranks_);
}

// The same in one pass over memory.
void PieceLayout::average_floats(const at::Tensor& bucket, const at::Tensor& chunks, int me,
                                 const at::Tensor& mean) const {
  constexpr int64_t kBlock = 2048;
  const auto ranks = static_cast<float>(ranks_);
  const float* own = bucket.const_data_ptr<float>();
  const float* others = chunks.const_data_ptr<float>();
  float* out = mean.mutable_data_ptr<float>();
  int64_t at = 0;
  for (const Item& item : items_) {
    const Range range = item.parameter->range(me);
    for (int64_t done = 0; done < range.length; done += kBlock) {
      const int64_t count = std::min(kBlock, range.length - done);
      float* to = out + at + done;
      for (int rank = 0; rank < ranks_; ++rank) {
        const float* from = rank == me ? own + item.offset + range.begin + done
                                       : others + rank * length_ + at + done;
        if (rank == 0) {
          std::copy_n(from, count, to);
        } else {
          for (int64_t i = 0; i < count; ++i) to[i] += from[i];
        }
      }
      for (int64_t i = 0; i < count; ++i) to[i] /= ranks;
    }
    at += range.length;
  }
}

void PieceLayout::read(int rank, at::Tensor chunk) const {
  int64_t at = 0;
  for (const Item& item : items_) {
    const at::Tensor& piece = item.parameter->piece(rank);
    chunk.narrow(0, at, piece.numel()).copy_(piece);
    at += piece.numel();
  }
}

void PieceLayout::write(const at::Tensor& chunks, int me) const {
  std::vector<at::Tensor> to, from;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == me) continue;
    int64_t at = rank * length_;
    for (const Item& item : items_) {
      const at::Tensor& piece = item.parameter->piece(rank);
      if (piece.numel() == 0) continue;
      to.push_back(piece);
      from.push_back(chunks.narrow(0, at, piece.numel()));
      at += piece.numel();
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

OptimizerState join_pieces(const std::vector<OptimizerState>& shards,
                           const std::vector<CutParameter>& parameters) {
  const auto owners = by_key(parameters);
  const int ranks = static_cast<int>(shards.size());
  std::unordered_map<const CutParameter*, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) index_of[&parameters[i]] = i;
  OptimizerState whole;
  std::map<std::string, int64_t> filled;
  for (int rank = 0; rank < ranks; ++rank) {
    const OptimizerState& shard = shards[static_cast<size_t>(rank)];
    whole.values.insert(shard.values.begin(), shard.values.end());
    for (const auto& [key, tensor] : shard.tensors) {
      const auto owner = owners.find(key.substr(0, key.rfind('.')));
      if (owner == owners.end()) continue;
      const int64_t n = owner->second->parameter().numel();
      const Range range = piece_of(n, index_of.at(owner->second), rank, ranks);
      if (tensor.numel() != range.length) refuse(key, tensor, range.length);
      at::Tensor& all = whole.tensors[key];
      if (!all.defined()) all = at::empty({n}, tensor.options());
      all.narrow(0, range.begin, range.length).copy_(tensor);
      filled[key] += range.length;
    }
  }
  for (const auto& [key, tensor] : whole.tensors) {
    if (filled[key] != tensor.numel())
      throw ConfigError("ZeRO: pieces of '" + key + "' are missing");
  }
  return whole;
}

OptimizerState cut_pieces(const OptimizerState& whole,
                          const std::vector<CutParameter>& parameters, int rank) {
  const auto cut = [&](const std::string& key, const at::Tensor& tensor,
                       const CutParameter& owner) {
    if (tensor.numel() != owner.parameter().numel())
      refuse(key, tensor, owner.parameter().numel());
    const Range range = owner.range(rank);
    return tensor.flatten().narrow(0, range.begin, range.length);
  };
  return change_tensors(whole, parameters, cut);
}

OptimizerState shape_state(OptimizerState flat,
                           const std::vector<CutParameter>& parameters) {
  const auto shape = [](const std::string&, const at::Tensor& tensor,
                        const CutParameter& owner) {
    return tensor.as_strided(owner.parameter().sizes(), owner.parameter().strides());
  };
  return change_tensors(std::move(flat), parameters, shape);
}

OptimizerState flatten_state(OptimizerState shaped,
                             const std::vector<CutParameter>& parameters) {
  const auto flatten = [](const std::string& key, const at::Tensor& tensor,
                          const CutParameter& owner) {
    if (tensor.sizes() != owner.parameter().sizes())
      refuse(key, tensor, owner.parameter().numel());
    at::Tensor same =
        at::empty_strided(tensor.sizes(), owner.parameter().strides(), tensor.options());
    return flat_view(same.copy_(tensor));
  };
  return change_tensors(std::move(shaped), parameters, flatten);
}

}  // namespace brigade::optim
