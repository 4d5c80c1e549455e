// --metrics-port: a job's numbers over HTTP, for Prometheus on the same host.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "launch/store.h"

namespace brigade::launching {

// Listens on 127.0.0.1 only, and answers on a thread of its own. A client has two seconds
// and four kilobytes for its request, and at most sixteen are served at once: one more
// drives out the one that has been silent longest. So clients that are slow, or send
// anything else, disturb neither the job nor each other for long.
class MetricsServer {
 public:
  // Gives the text; called on the server's thread.
  using Page = std::function<std::string()>;

  // Binds. Port 0: a free one. Throws ConfigError if the port cannot be had.
  explicit MetricsServer(std::uint16_t port);
  ~MetricsServer() { stop(); }
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::uint16_t port() const { return listener_.port(); }
  // For workers to close.
  int fd() const { return listener_.fd(); }
  // Answers until stop(); who comes in between waits.
  void start(Page page);
  void stop();

 private:
  void serve(const Page& page, int stopped) const;

  Listener listener_;
  int stop_ = -1;
  std::thread thread_;
};

}  // namespace brigade::launching
