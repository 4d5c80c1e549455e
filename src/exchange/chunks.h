// How values are divided among the ranks that own them.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "codec/codec.h"

namespace brigade {

// Of n values each of `owners` ranks owns one chunk. The last chunks may be short, or
// empty. *Messages* of one chunk each lie side by side in a tensor of bytes.
struct Chunks {
  Chunks(int64_t n, int owners, const Codec& codec) : n(n) {
    const int64_t even = (n + owners - 1) / owners;
    length = (even + codec.block() - 1) / codec.block() * codec.block();
    message_bytes = codec.wire_bytes(length);
  }
  at::Tensor of(const at::Tensor& whole, int owner) const {
    const int64_t begin = std::min(n, owner * length);
    return whole.narrow(0, begin, std::min(n, begin + length) - begin);
  }
  at::Tensor message(const at::Tensor& wire, int place) const {
    return wire.narrow(0, place * message_bytes, message_bytes);
  }

  int64_t n;
  int64_t length;
  int64_t message_bytes;
};

// body(rank, its place among the others) for each of `ranks` except `me`.
template <class Body>
void each_other(int ranks, int me, Body&& body) {
  for (int place = 0; place < ranks - 1; ++place)
    body(place < me ? place : place + 1, place);
}

}  // namespace brigade
