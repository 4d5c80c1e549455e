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

#include <memory>
#include <string>

#include "base/buffer_pool.h"
#include "brigade/compose_hooks.h"
#include "brigade/hook.h"
#include "codec/codec.h"
#include "exchange/chunks.h"
#include "exchange/host_parts.h"

namespace brigade {

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
  Task<void> add_up_in_host(at::Tensor values, HostParts parts, Comm& comm);
  Task<void> share_in_host(at::Tensor values, at::Tensor memory, HostParts parts,
                           Comm& comm);

  const std::shared_ptr<const Codec> codec_;
  const bool flat_;
  base::BufferPool pool_;
  Semaphore turns_{kSegmentsAtOnce};
};

}  // namespace brigade
