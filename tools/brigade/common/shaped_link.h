// A slow network on one machine: hosts are network namespaces, each with a cable of a given
// rate and one or several ranks. Needs root.
//
//   const ShapedLink link(2, 100e6);
//   run_workers({.workers = 2, .link = &link}, [&](const Worker& worker) { … });
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/process_group.h"

namespace brigade::tool {

// The link lives as long as this object and the workers. The namespaces have no names, so
// nothing is left, however the processes end.
class ShapedLink {
 public:
  // Says why there can be no link here; empty if there can.
  static std::string missing();

  // `hosts` namespaces, joined by a switch; each sends at most `bits_per_second`, and has
  // `ranks_per_host` ranks. Throws Error. REQUIRES: this process has one thread.
  ShapedLink(int hosts, double bits_per_second, int ranks_per_host = 1);
  ~ShapedLink();
  ShapedLink(const ShapedLink&) = delete;
  ShapedLink& operator=(const ShapedLink&) = delete;

  int hosts() const { return static_cast<int>(namespaces_.size()); }
  int ranks_per_host() const { return ranks_per_host_; }
  int host_of(int rank) const { return rank / ranks_per_host_; }
  const std::string& rate() const { return rate_; }  // "100 Mbit/s"
  // The namespace of host `place` as a file, for nsenter --net=PATH; valid while this
  // process lives.
  std::string path(int place) const;
  static std::string address(int place);
  static constexpr const char* kInterface = "brg0";

  // Collective, in a worker: moves this process to its host, and makes the group of all
  // ranks over the link. REQUIRES: called first, while the worker has one thread.
  ProcessGroup join(int rank, std::optional<std::chrono::milliseconds> timeout = {}) const;
  // Only moves this process to its host.
  void enter(int place) const;

 private:
  const int ranks_per_host_;
  std::vector<int> namespaces_;  // descriptors; workers inherit them
  int switch_ = -1;
  std::string rate_;
};

// Makes the link that `--link RATE` asks for; null for an empty text and for "loopback".
// Throws ConfigError for a rate that cannot be read, and where there can be no link.
std::unique_ptr<ShapedLink> link_from(const std::string& rate, int hosts,
                                      int ranks_per_host = 1);

}  // namespace brigade::tool
