// Makes Gloo backends. No other file uses gloo's names.
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
  // The limit for connecting; 0: `timeout`.
  std::chrono::milliseconds connect_timeout{0};
  // The number of gloo's worker threads, and so of this group's collectives that run at
  // once.
  int threads = 2;
  // If given, fail_all() on it ends collectives on CPU tensors.
  std::shared_ptr<LiveWorks> works;
};

// Connects to every other rank through `store`; blocks until all are connected, for
// `timeout` at most. REQUIRES: `store` is used by this backend alone (a PrefixStore of its
// own); every rank calls it. `listener`, if given, gets the socket that this rank's peers
// connect to; it belongs to the backend.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store,
                                                    int rank, int size,
                                                    const GlooOptions& options,
                                                    int* listener = nullptr);

// Gives a backend of make_gloo_backend() the ranks' ends of its connections, by rank:
// "127.0.0.1:4711 127.0.0.1:35124".
void set_endpoints(c10d::Backend& gloo, std::vector<std::string> endpoints);
// Finds an end of a connection in an error's text, and returns its rank. None if there is
// none, or the group's backend for CPU tensors does not know the ends.
std::optional<int> rank_named_in(c10d::ProcessGroup& group, const std::string& text);

}  // namespace brigade::torch_port
