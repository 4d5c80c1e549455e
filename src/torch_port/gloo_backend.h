// Makes Gloo backends. No other file sees gloo's names.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_port/c10d_forward.h"

namespace brigade::torch_port {

class LiveWorks;

struct GlooOptions {
  // The address or host name to listen on. If empty, `interface` is used.
  std::string address = "127.0.0.1";
  // The network interface to listen on, if `address` is empty.
  std::string interface;
  std::chrono::milliseconds timeout{300'000};
  // For the connections alone; 0: `timeout`.
  std::chrono::milliseconds connect_timeout{0};
  // The number of gloo's worker threads: so many collectives of this group run at once.
  int threads = 2;
  // If given, collectives on CPU tensors end when they are given up there.
  std::shared_ptr<LiveWorks> works;
};

// Connects to every other rank through `store`; blocks until all have come, for `timeout`
// at most. REQUIRES: `store` is used by this backend alone (a PrefixStore of its own);
// every rank calls it. `listener`, if given, gets a socket that this rank's peers connect
// to: the backend's, to be looked at only.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    const GlooOptions& options,
                                                    int* listener = nullptr);

// Tells a backend of make_gloo_backend() the ranks' ends of its connections, by rank:
// "127.0.0.1:4711 127.0.0.1:35124".
void set_endpoints(c10d::Backend& gloo, std::vector<std::string> endpoints);
// Finds, in an error's text, an end of a connection, and gives the rank it belongs to.
// None: there is no such end, or the group's backend for CPU tensors was told of no ends.
std::optional<int> rank_named_in(c10d::ProcessGroup& group, const std::string& text);

}  // namespace brigade::torch_port
