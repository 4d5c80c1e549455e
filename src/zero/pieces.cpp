#include "zero/pieces.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

#include "kernels/mean.h"
#include "zero/flat.h"
#include "zero/text.h"

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
  // Ranks `first`, `first` + 1, …, as many as are left over, have one element more.
  const int64_t each = n / ranks, over = n % ranks;
  const auto first = static_cast<int64_t>(index % static_cast<size_t>(ranks));
  const auto begin = [&](int64_t of) {
    const int64_t longer = std::clamp<int64_t>(of - first, 0, over) +
                           std::clamp<int64_t>(first + over - ranks, 0, of);
    return of * each + longer;
  };
  return {begin(rank), begin(rank + 1) - begin(rank)};
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

void add_up(const std::vector<at::Tensor>& by_rank, bool divided, at::Tensor mean) {
  const auto ranks = static_cast<int64_t>(by_rank.size());
  if (mean.is_cpu() && mean.scalar_type() == at::kFloat && !divided) {
    std::vector<const float*> parts;
    for (const at::Tensor& part : by_rank) parts.push_back(part.const_data_ptr<float>());
    kernels::mean(parts, static_cast<size_t>(mean.numel()), mean.mutable_data_ptr<float>());
    return;
  }
  at::Tensor sum = by_rank.front().clone();
  for (size_t rank = 1; rank < by_rank.size(); ++rank) sum.add_(by_rank[rank]);
  mean.copy_(divided ? sum : sum.div_(ranks));
}

PieceLayout::PieceLayout(std::vector<Item> items, int ranks, int me)
    : items_(std::move(items)),
      ranks_(ranks),
      me_(me),
      filled_(static_cast<size_t>(ranks)) {
  for (const Item& item : items_) {
    for (int rank = 0; rank < ranks; ++rank)
      filled_[static_cast<size_t>(rank)] += item.parameter->range(rank).length;
  }
  for (const int64_t filled : filled_) length_ = std::max(length_, filled);
}

at::Tensor PieceLayout::chunk(const at::Tensor& chunks, int rank) const {
  const int place = rank == me_ ? ranks_ - 1 : rank < me_ ? rank : rank - 1;
  return chunks.narrow(0, place * length_, length_);
}

at::Tensor PieceLayout::others(const at::Tensor& chunks) const {
  return chunks.narrow(0, 0, (ranks_ - 1) * length_);
}

void PieceLayout::read_gradients(const at::Tensor& bucket, at::Tensor chunks) const {
  if (length_ == 0) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == me_) continue;
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

void PieceLayout::average(const at::Tensor& bucket, at::Tensor chunks, bool divided,
                          at::Tensor mean) const {
  if (bucket.is_cpu() && bucket.scalar_type() == at::kFloat && !divided) {
    average_floats(bucket, chunks, mean);
    return;
  }
  at::Tensor own = chunk(chunks, me_);
  int64_t at = 0;
  for (const Item& item : items_) {
    const Range range = item.parameter->range(me_);
    own.narrow(0, at, range.length)
        .copy_(bucket.narrow(0, item.offset + range.begin, range.length));
    at += range.length;
  }
  if (divided) own.div_(ranks_);
  std::vector<at::Tensor> by_rank;
  for (int rank = 0; rank < ranks_; ++rank) by_rank.push_back(chunk(chunks, rank));
  add_up(by_rank, divided, mean);
}

// The same in one pass over memory.
void PieceLayout::average_floats(const at::Tensor& bucket, const at::Tensor& chunks,
                                 const at::Tensor& mean) const {
  std::vector<const float*> next;
  for (int rank = 0; rank < ranks_; ++rank)
    next.push_back(chunk(chunks, rank).const_data_ptr<float>());
  float* to = mean.mutable_data_ptr<float>();
  for (const Item& item : items_) {
    const Range range = item.parameter->range(me_);
    next[static_cast<size_t>(me_)] =
        bucket.const_data_ptr<float>() + item.offset + range.begin;
    kernels::mean(next, static_cast<size_t>(range.length), to);
    for (const float*& part : next) part += range.length;
    to += range.length;
  }
}

void PieceLayout::read(at::Tensor chunk) const {
  int64_t at = 0;
  for (const Item& item : items_) {
    const at::Tensor& piece = item.parameter->piece(me_);
    chunk.narrow(0, at, piece.numel()).copy_(piece);
    at += piece.numel();
  }
}

void PieceLayout::write(const std::function<at::Tensor(int rank)>& chunk_of) const {
  std::vector<at::Tensor> to, from;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == me_) continue;
    const at::Tensor chunk = chunk_of(rank);
    int64_t at = 0;
    for (const Item& item : items_) {
      const at::Tensor& piece = item.parameter->piece(rank);
      if (piece.numel() == 0) continue;
      to.push_back(piece);
      from.push_back(chunk.narrow(0, at, piece.numel()));
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
