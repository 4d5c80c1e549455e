// Hashes to check that the ranks' copies of a model have the same bits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace brigade::engine {

// A hash of each tensor's bits: XXH64 on the CPU; on other devices two reductions there, so
// that only a few bytes are copied to the host. Equal bits give equal hashes on ranks with
// the same kind of device.
std::vector<int64_t> hash_tensors(const std::vector<at::Tensor>& tensors);
// One hash of all hashes.
int64_t hash_of(const std::vector<int64_t>& hashes);

// Names the ranks that differ from the majority, and the first parameter that differs:
// "rank 1 differs from ranks 0, 2, first in the parameter 'head.weight'". Of two equal
// halves, rank 0's counts as the majority. REQUIRES: the hashes, by rank, differ; every
// rank has as many as there are names.
std::string describe_drift(const std::vector<std::string>& names,
                           const std::vector<std::vector<int64_t>>& hashes);

}  // namespace brigade::engine
