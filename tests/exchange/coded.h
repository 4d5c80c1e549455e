// Shared by tests of exchanges: every codec, inputs known to all ranks, one round of
// coding.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "codec/codec.h"

namespace brigade::testing {

inline std::vector<std::shared_ptr<Codec>> all_codecs() {
  std::vector<std::shared_ptr<Codec>> all;
  all.push_back(make_fp16_codec());
  all.push_back(make_bf16_codec());
  all.push_back(make_int8_codec());
  all.push_back(make_int4_codec());
  all.push_back(make_affine_block_codec());
  all.push_back(make_affine_tensor_codec());
  all.push_back(make_top_k_codec(0.5));
  return all;
}

inline at::Tensor values_of(int64_t n, int rank, int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(rank * 7919 + step * 31 + n));
  return at::randn({n}, generator, at::TensorOptions().dtype(at::kFloat));
}

// values * scale, encoded and decoded.
inline at::Tensor coded_once(const at::Tensor& values, const Codec& codec, int64_t chunk,
                             double scale) {
  at::Tensor wire = at::empty({codec.wire_bytes(chunk)}, at::kByte);
  codec.encode(values, chunk, scale, at::Tensor(), wire);
  at::Tensor out = at::empty_like(values);
  codec.decode(wire, chunk, out);
  return out;
}

// The number of values that each of `owners` owners has of n, in whole blocks.
inline int64_t chunk_length(int64_t n, int64_t owners, const Codec& codec) {
  const int64_t even = (n + owners - 1) / owners;
  return (even + codec.block() - 1) / codec.block() * codec.block();
}

// The expected result of two phases: each chunk is coded by all except its owner and added
// in order to the owner's values; then the sum / ranks is coded once more.
inline at::Tensor two_phase_mean(const std::vector<at::Tensor>& inputs, const Codec& codec,
                                 int64_t ranks) {
  const auto owners = static_cast<int64_t>(inputs.size());
  const int64_t n = inputs[0].numel(), chunk = chunk_length(n, owners, codec);
  std::vector<at::Tensor> chunks;
  for (int64_t owner = 0; owner * chunk < n; ++owner) {
    const int64_t begin = owner * chunk, length = std::min(chunk, n - begin);
    at::Tensor sum = inputs[owner].narrow(0, begin, length).clone();
    for (int64_t other = 0; other < owners; ++other) {
      if (other != owner)
        sum += coded_once(inputs[other].narrow(0, begin, length), codec, chunk, 1.0);
    }
    chunks.push_back(coded_once(sum, codec, chunk, 1.0 / static_cast<double>(ranks)));
  }
  return at::cat(chunks);
}

}  // namespace brigade::testing
