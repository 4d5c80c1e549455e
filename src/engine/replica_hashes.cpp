#include "engine/replica_hashes.h"

#include <ATen/ATen.h>
#include <ATen/ops/hash_tensor.h>

#include <algorithm>
#include <map>

#include "base/hash.h"

namespace brigade::engine {
namespace {

// A view or copy without gaps between elements, in any order.
at::Tensor dense(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

template <class T>
int64_t hash_bytes(const T* data, size_t bytes) {
  return static_cast<int64_t>(base::hash64({reinterpret_cast<const char*>(data), bytes}));
}

// Two reductions are needed: the first misses an even number of equal values. Both miss
// swapped values, but replicas do not drift that way.
at::Tensor reduce_bits(const at::Tensor& tensor) {
  at::Tensor flat = dense(tensor);
  flat = flat.as_strided({flat.numel()}, {1});
  if (flat.is_complex()) flat = at::view_as_real(flat).flatten();
  const at::ScalarType bits = flat.element_size() == 1   ? at::kChar
                              : flat.element_size() == 2 ? at::kShort
                              : flat.element_size() == 4 ? at::kInt
                                                         : at::kLong;
  flat = flat.view(bits);
  return at::stack({at::hash_tensor(flat).view(at::kLong), flat.sum(at::kLong)});
}

std::string list_of(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

std::vector<int64_t> hash_tensors(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> hashes(tensors.size());
  std::vector<at::Tensor> reduced;
  std::vector<size_t> where;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_cpu()) {
      const at::Tensor bits = dense(tensors[i]);
      hashes[i] = hash_bytes(bits.const_data_ptr(), bits.nbytes());
    } else if (tensors[i].numel() > 0) {
      reduced.push_back(reduce_bits(tensors[i]));
      where.push_back(i);
    }
  }
  if (reduced.empty()) return hashes;
  const at::Tensor all = at::stack(reduced).cpu();  // one wait of the host
  const auto* pairs = all.const_data_ptr<int64_t>();
  for (size_t i = 0; i < where.size(); ++i)
    hashes[where[i]] = hash_bytes(pairs + 2 * i, 2 * sizeof *pairs);
  return hashes;
}

int64_t hash_of(const std::vector<int64_t>& hashes) {
  return hash_bytes(hashes.data(), hashes.size() * sizeof hashes[0]);
}

std::string describe_drift(const std::vector<std::string>& names,
                           const std::vector<std::vector<int64_t>>& hashes) {
  for (size_t i = 0; i < names.size(); ++i) {
    std::map<int64_t, std::vector<size_t>> ranks_of;
    for (size_t rank = 0; rank < hashes.size(); ++rank)
      ranks_of[hashes[rank].at(i)].push_back(rank);
    if (ranks_of.size() == 1) continue;
    const auto weaker = [](const auto& a, const auto& b) {
      if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
      return a.second.front() > b.second.front();
    };
    const auto most = std::max_element(ranks_of.begin(), ranks_of.end(), weaker);
    std::vector<size_t> others;
    for (const auto& [hash, ranks] : ranks_of) {
      if (hash != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    }
    std::sort(others.begin(), others.end());
    return list_of(others) + (others.size() == 1 ? " differs from " : " differ from ") +
           list_of(most->second) + ", first in the parameter '" + names[i] + "'";
  }
  return "the ranks' hashes differ";
}

}  // namespace brigade::engine
