// Keeps LibTorch's store from asking name servers for the names of addresses.
//
// It asks before it connects and when a wait fails, for texts that are hardly ever shown.
// If the server does not answer, each query takes 5 s and more, so time limits are over
// before the first connection.
#pragma once
#include <netinet/in.h>

#include <thread>

namespace brigade::group {

// While it lives, the calling thread has no name server: every query fails at once. Costs
// almost nothing. Where LibTorch shows an address it also warns that it has no name.
class ResolverOff {
 public:
  ResolverOff();
  ~ResolverOff();
  ResolverOff(const ResolverOff&) = delete;
  ResolverOff& operator=(const ResolverOff&) = delete;

 protected:
  // Makes `server` the only one of the calling thread. Without effect if the system's
  // resolver cannot be set.
  void ask(const sockaddr_in& server) const;

 private:
  const bool ready_;
  unsigned long options_ = 0;
  int servers_ = 0;
  sockaddr_in first_{};
};

// The same with a server that answers "no such name" to everything, which LibTorch accepts
// without a warning. For calls that always ask. Has a thread while it lives.
class ResolverAnswersNo : ResolverOff {
 public:
  ResolverAnswersNo();
  ~ResolverAnswersNo();

 private:
  void answer() const;

  const int socket_;
  sockaddr_in own_{};
  std::thread thread_;
};

}  // namespace brigade::group
