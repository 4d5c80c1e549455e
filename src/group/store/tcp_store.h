// LibTorch's TCP store, opened without asking the host's name server.
#pragma once
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace brigade::group {

// `address` is numeric: "127.0.0.1", "fe80::1%eth0". See resolver_off.h.
c10::intrusive_ptr<c10d::TCPStore> open_tcp_store(const std::string& address,
                                                  const c10d::TCPStoreOptions& options);

// Throws Error when this process has too few descriptors left to host a store.
void check_descriptors_of_store();

}  // namespace brigade::group
