#include "exchange/host_chunks.h"

#include <ATen/ATen.h>

#include "exchange/two_phase.h"

namespace brigade {

HostChunks::HostChunks(int64_t n, const HostLayout& layout, const Codec& codec)
    : codec_(&codec),
      n_(n),
      part_(Chunks(n, layout.places(), codec).length),
      host_ranks_(static_cast<int>(layout.host_ranks().size())),
      me_(layout.place),
      places_(layout.places()),
      hosts_(layout.hosts()),
      host_(layout.host) {}

int64_t HostChunks::begin(int mate) const { return std::min(n_, mate * part_); }

int64_t HostChunks::length(int mate) const {
  return mate < places_ ? begin(mate + 1) - begin(mate) : 0;
}

at::Tensor HostChunks::of(const at::Tensor& whole, int mate) const {
  return whole.narrow(0, begin(mate), length(mate));
}

int64_t HostChunks::wire_bytes(int mate) const {
  const int64_t values = length(mate);
  return values > 0 ? hosts_ * Chunks(values, hosts_, *codec_).message_bytes : 0;
}

bool HostChunks::in_the_middle() const {
  return length(me_) > 0 && begin(me_) > 0 && begin(me_) + length(me_) < n_;
}

at::Tensor HostChunks::outgoing(const at::Tensor& values) const {
  if (in_the_middle()) return values;
  const int64_t first = begin(me_) == 0 ? length(me_) : 0;
  return values.narrow(0, first, n_ - length(me_));
}

std::vector<int64_t> HostChunks::outgoing_lengths() const {
  std::vector<int64_t> lengths;
  for (int mate = 0; mate < host_ranks_; ++mate)
    lengths.push_back(mate == me_ && !in_the_middle() ? 0 : length(mate));
  return lengths;
}

std::vector<int64_t> HostChunks::incoming_lengths() const {
  std::vector<int64_t> lengths(static_cast<size_t>(host_ranks_), length(me_));
  if (!in_the_middle()) lengths[static_cast<size_t>(me_)] = 0;
  return lengths;
}

void HostChunks::hand_over(at::Tensor values, at::Tensor residual) const {
  for (int mate = 0; mate < places_; ++mate) {
    if (mate == me_) continue;
    at::Tensor lost = of(residual, mate);
    of(values, mate).add_(lost);
    lost.zero_();
  }
}

}  // namespace brigade
