// The compressed all-reduce that every dense codec uses.
//
// Vocabulary. Every rank *owns* one *chunk* of the values. Phase one brings the other
// ranks' messages for a chunk to its owner, who decodes them and adds them, ranks in order,
// to its own values in float32. Phase two brings the owner's mean, encoded, to everybody.
// Many values go in *segments*, each by itself, several under way at once.
//
// Where ranks share hosts, the two phases are among the ranks of equal place on all hosts,
// each for its *part* of the values, and two exchanges inside the host come before and
// after them (host_parts.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/buffer_pool.h"
#include "brigade/compose_hooks.h"
#include "brigade/hook.h"
#include "codec/codec.h"
#include "exchange/host_chunks.h"

namespace brigade {

// ---- how values are divided ------------------------------------------------------------

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

// One serves one hook: the memory of its messages is kept from step to step.
class TwoPhase {
 public:
  // `flat`: no difference is made between ranks of this host and of others.
  explicit TwoPhase(std::shared_ptr<const Codec> codec, bool flat = false)
      : codec_(std::move(codec)), flat_(flat) {}

  // `values`, one dimension of contiguous float32, becomes the mean over the ranks, up to
  // the codec's error; every rank, the owner too, writes what it decodes, so all end with
  // the same bits. With one rank nothing happens. `residuals`: undefined, or error feedback
  // of the same size, updated: over the ranks, the mean of the residuals is exactly what
  // the results so far lack (the owner takes the error of phase two upon itself, times the
  // number of ranks; its own values lose nothing in phase one). Where they have moved since
  // the last call with this division(), they may be other than zero outside of this rank's
  // part, which costs a pass over both tensors. Buckets may be under way side by side.
  //
  // Sends, with W ranks, 2 (W - 1) / W times the codec's bytes a rank. Where ranks share
  // hosts, with H hosts, a host sends 2 (H - 1) / H times the codec's bytes to others.
  Task<void> all_reduce(at::Tensor values, Residuals residuals, Comm& comm);

  // Tells where this rank's residual can be other than zero: for Residuals::moved, and for
  // checkpoints.
  std::string division(const Comm& comm) const;

 private:
  bool by_host(const Comm& comm) const;
  // One segment.
  Task<void> reduce_segment(at::Tensor values, Residuals residuals, Comm& comm);
  Task<void> reduce_segment_by_host(at::Tensor values, Residuals residuals, Comm& comm);
  // `turn`, if not null, is released after the first phase.
  Task<at::Tensor> exchange_means(at::Tensor values, Residuals residuals, int divisor,
                                  Semaphore::Permit* turn, Comm& comm);
  Task<void> add_up_in_host(at::Tensor values, HostChunks parts, Comm& comm);
  Task<void> share_in_host(at::Tensor values, at::Tensor memory, HostChunks parts,
                           Comm& comm);

  const std::shared_ptr<const Codec> codec_;
  const bool flat_;
  base::BufferPool pool_;
  Semaphore turns_{kSegmentsAtOnce};
};

}  // namespace brigade
