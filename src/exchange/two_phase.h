// The compressed all-reduce that every dense codec uses.
//
// Vocabulary. Every rank *owns* one *chunk* of the values. Phase one brings the other
// ranks' messages for a chunk to its owner, who decodes them and adds them, ranks in order,
// to its own values in float32. Phase two brings the owner's mean, encoded, to everybody.
// Many values are sent in *segments*, several under way at once.
//
// Where ranks share hosts, the two phases run among the ranks of equal place on all hosts,
// each for its *part* of the values, and an exchange inside the host comes before and after
// them (host_chunks.h).
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

// Large buckets are sent in segments of about this many values, so that one is encoded
// while another is on the wire and a third is decoded. A quarter of it slows a loopback
// pass of fp16, and gains nothing over 1 Gbit/s.
inline constexpr int64_t kSegment = int64_t{1} << 21;
// The same where ranks share hosts, with four exchanges to keep busy. With 2 hosts x 2
// ranks on two cores over 1 Gbit/s, 16 MB with int8 take 45 ms; in segments four times as
// long, all started at once, 52.
inline constexpr int64_t kSegmentByHost = int64_t{1} << 19;
inline constexpr int64_t kSegmentOnDevice = int64_t{1} << 22;
// Where ranks share hosts, the most segments that are summed in the host or in the first
// phase. More would take cores from segments that are ready for other hosts.
inline constexpr int kSegmentsAtOnce = 2;

// Divides n values into a chunk for each of `owners` ranks. The last chunks may be short,
// or empty. *Messages* of one chunk each are contiguous in a tensor of bytes.
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

// Calls body(rank, its index among the others) for each of `ranks` except `me`.
template <class Body>
void each_other(int ranks, int me, Body&& body) {
  for (int place = 0; place < ranks - 1; ++place)
    body(place < me ? place : place + 1, place);
}

// Each hook has one; it keeps its messages' memory from step to step.
class TwoPhase {
 public:
  // `flat`: treats ranks of this host and of others alike.
  explicit TwoPhase(std::shared_ptr<const Codec> codec, bool flat = false)
      : codec_(std::move(codec)), flat_(flat) {}

  // `values`, one dimension of contiguous float32, becomes the mean over the ranks, up to
  // the codec's error; every rank, the owner too, writes what it decodes, so all end with
  // the same bits. With one rank nothing happens. `residuals`: undefined, or error feedback
  // of the same size, which is updated: the mean of the residuals over the ranks is exactly
  // the error of the results so far (the owner adds the error of phase two to its own,
  // times the number of ranks; its own values lose nothing in phase one). If they moved
  // since the last call with this division(), they may be nonzero outside of this rank's
  // part, which costs a pass over both tensors. Several buckets may be under way at once.
  //
  // With W ranks, each rank sends 2 (W - 1) / W times the codec's bytes. Where ranks share
  // H hosts, a host sends 2 (H - 1) / H times the codec's bytes to others.
  Task<void> all_reduce(at::Tensor values, Residuals residuals, Comm& comm);

  // Describes where this rank's residual can be nonzero, for Residuals::moved and for
  // checkpoints.
  std::string division(const Comm& comm) const;

 private:
  bool by_host(const Comm& comm) const;
  // Reduces one segment.
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
