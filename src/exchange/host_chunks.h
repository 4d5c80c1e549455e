// Who owns what among the ranks of one host.
//
// Vocabulary. The *host ranks* of a rank are the ranks of its host, itself among them. The
// values are divided in as many *parts* as there are places on every host; part p belongs
// to place p. A host with more ranks than that has host ranks without a part.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "brigade/process_group.h"
#include "codec/codec.h"

namespace brigade {

class HostChunks {
 public:
  // Of n values. REQUIRES: n > 0.
  HostChunks(int64_t n, const HostLayout& layout, const Codec& codec);

  int host_ranks() const { return host_ranks_; }
  int me() const { return me_; }
  int hosts() const { return hosts_; }
  int host() const { return host_; }
  int count() const { return places_; }  // of the parts
  // The part of a mate; empty if it has none.
  at::Tensor of(const at::Tensor& whole, int mate) const;
  int64_t length(int mate) const;
  // What one rank's part takes on the wire when all hosts' chunks of it lie side by side.
  int64_t wire_bytes(int mate) const;

  // The values that this rank sends to its host ranks before they add up: `values` without
  // its own part, or, where that lies in the middle, with it. Lengths by mate.
  at::Tensor outgoing(const at::Tensor& values) const;
  std::vector<int64_t> outgoing_lengths() const;
  // Lengths of the values that it gets: everybody's values of its part.
  std::vector<int64_t> incoming_lengths() const;

  // values += residual and residual = 0, outside of this rank's part.
  void hand_over(at::Tensor values, at::Tensor residual) const;

 private:
  int64_t begin(int mate) const;
  bool in_the_middle() const;

  const Codec* codec_;
  int64_t n_;
  int64_t part_;  // length of all parts, except the last ones, which may be shorter
  int host_ranks_, me_, places_, hosts_, host_;
};

}  // namespace brigade
