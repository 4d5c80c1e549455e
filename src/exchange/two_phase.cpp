#include "exchange/two_phase.h"

#include <ATen/ATen.h>

namespace brigade {
namespace {

// How n values are divided: the last chunks may be short, or empty.
struct Chunks {
  Chunks(int64_t n, int ranks, const Codec& codec) : n(n) {
    const int64_t even = (n + ranks - 1) / ranks;
    length = (even + codec.block() - 1) / codec.block() * codec.block();
    message_bytes = codec.wire_bytes(length);
  }
  at::Tensor of(const at::Tensor& whole, int owner) const {
    const int64_t begin = std::min(n, owner * length);
    return whole.narrow(0, begin, std::min(n, begin + length) - begin);
  }
  at::Tensor message(const at::Tensor& wire, int owner) const {
    return wire.narrow(0, owner * message_bytes, message_bytes);
  }
  int64_t n;
  int64_t length;
  int64_t message_bytes;
};

}  // namespace

Task<void> two_phase_all_reduce(at::Tensor values, const Codec& codec, at::Tensor residual,
                                Comm& comm) {
  const int ranks = comm.size();
  if (ranks == 1 || values.numel() == 0) co_return;
  const Chunks chunks(values.numel(), ranks, codec);
  const auto residual_of = [&](int owner) {
    return residual.defined() ? chunks.of(residual, owner) : at::Tensor();
  };

  const auto bytes = values.options().dtype(at::kByte);
  at::Tensor outgoing = at::empty(ranks * chunks.message_bytes, bytes);
  for (int owner = 0; owner < ranks; ++owner) {
    codec.encode(chunks.of(values, owner), chunks.length, 1.0, residual_of(owner),
                 chunks.message(outgoing, owner));
  }
  at::Tensor incoming = at::empty_like(outgoing);
  co_await comm.all_to_all(outgoing, incoming);

  // The chunk's own values are on their way already: their place takes the sum.
  at::Tensor sum = chunks.of(values, comm.rank());
  codec.decode(chunks.message(incoming, 0), chunks.length, sum);
  for (int rank = 1; rank < ranks; ++rank) {
    codec.decode_add(chunks.message(incoming, rank), chunks.length, sum);
  }
  at::Tensor lost = residual.defined() ? at::zeros_like(sum) : at::Tensor();
  at::Tensor mean = chunks.message(outgoing, comm.rank());
  codec.encode(sum, chunks.length, 1.0 / ranks, lost, mean);
  if (lost.defined()) residual_of(comm.rank()).add_(lost, ranks);
  co_await comm.all_gather(mean, incoming);

  for (int owner = 0; owner < ranks; ++owner) {
    codec.decode(chunks.message(incoming, owner), chunks.length, chunks.of(values, owner));
  }
}

}  // namespace brigade
