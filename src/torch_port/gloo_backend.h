// Makes Gloo backends. The only door to gloo: no other file sees its names.
#pragma once
#include <chrono>
#include <string>

#include "torch_port/c10d_forward.h"

namespace brigade::torch_port {

struct GlooOptions {
  // The address or host name to listen on; empty: use `interface`.
  std::string address = "127.0.0.1";
  // The network interface to listen on; looked at only when `address` is empty.
  std::string interface;
  std::chrono::milliseconds timeout{300'000};
  // gloo's own worker threads: how many collectives of this group may be under way at once.
  int threads = 2;
};

// Connects to every other rank through `store`; blocks until all have come, for `timeout`
// at most. REQUIRES: `store` is used by this backend alone (a PrefixStore of its own);
// every rank calls it.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    const GlooOptions& options);

}  // namespace brigade::torch_port
