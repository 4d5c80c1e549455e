// How values are divided: into segments, which go one by one, and among the ranks that own
// them.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "codec/codec.h"

namespace brigade {

// Large buckets go in segments of about this many values, so that one is encoded while
// another is on the wire and a third is decoded. A quarter of it makes a loopback pass of
// fp16 slower, and over 1 Gbit/s wins nothing.
inline constexpr int64_t kSegment = int64_t{1} << 21;
// Where ranks share hosts: there are four exchanges to keep busy. Of 2 hosts x 2 ranks on
// two cores over 1 Gbit/s, 16 MB by int8 take 45 ms; in segments four times as long, all
// started at once, 52.
inline constexpr int64_t kSegmentByHost = int64_t{1} << 19;
inline constexpr int64_t kSegmentOnDevice = int64_t{1} << 22;
// Where ranks share hosts: so many segments add up in the host or are in the first phase.
// More would take the cores from those that could be sent to other hosts already.
inline constexpr int kSegmentsAtOnce = 2;

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
