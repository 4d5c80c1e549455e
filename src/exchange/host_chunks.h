// How the ranks of one host divide values among themselves.
//
// Vocabulary. The *host ranks* of a rank are the ranks of its host, itself included; `mate`
// is the number of one. The values are divided into as many *parts* as there are places on
// every host; the rank with place p owns part p. On larger hosts, some ranks own no part.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "brigade/process_group.h"
#include "codec/codec.h"

namespace brigade {

class HostChunks {
 public:
  // Divides n values. REQUIRES: n > 0.
  HostChunks(int64_t n, const HostLayout& layout, const Codec& codec);

  int host_ranks() const { return host_ranks_; }
  int me() const { return me_; }
  int hosts() const { return hosts_; }
  int host() const { return host_; }
  int count() const { return places_; }  // the number of parts
  // The part of host rank `mate`; empty if it has none.
  at::Tensor of(const at::Tensor& whole, int mate) const;
  int64_t length(int mate) const;
  // The bytes of messages for all hosts' chunks of one rank's part.
  int64_t wire_bytes(int mate) const;

  // The values that this rank sends to its host ranks before they sum: `values` without its
  // own part, or with it if it is in the middle. outgoing_lengths() are by host rank.
  at::Tensor outgoing(const at::Tensor& values) const;
  std::vector<int64_t> outgoing_lengths() const;
  // Lengths of the values that it gets: all host ranks' values of its part.
  std::vector<int64_t> incoming_lengths() const;

  // values += residual and residual = 0, outside of this rank's part.
  void hand_over(at::Tensor values, at::Tensor residual) const;

 private:
  int64_t begin(int mate) const;
  bool in_the_middle() const;

  const Codec* codec_;
  int64_t n_;
  int64_t part_;  // length of a part; the last ones may be shorter
  int host_ranks_, me_, places_, hosts_, host_;
};

}  // namespace brigade
