// Finds out whether the ranks' copies of a model still have the same bits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace brigade::engine {

// One hash for each tensor, of its bits: XXH64 on the CPU; on other devices two reductions
// there, so that only a few bytes come to the host. Equal bits give equal hashes on ranks
// with the same kind of device.
std::vector<int64_t> hash_tensors(const std::vector<at::Tensor>& tensors);
// One hash for all of them.
int64_t hash_of(const std::vector<int64_t>& hashes);

// Which ranks differ from the others, and in which parameter first: "rank 1 differs from
// ranks 0, 2, first in the parameter 'head.weight'". Most ranks count as the others; of two
// equal halves, rank 0's. REQUIRES: the hashes, by rank, differ; every rank has as many as
// there are names.
std::string describe_drift(const std::vector<std::string>& names,
                           const std::vector<std::vector<int64_t>>& hashes);

}  // namespace brigade::engine
