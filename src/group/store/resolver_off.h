// Keeps LibTorch's store from asking name servers what addresses are called.
//
// It does so before it connects and when a wait was in vain, for texts that are hardly ever
// shown. Where the server does not answer each question takes 5 s and more: time limits are
// over before a connection was tried.
#pragma once
#include <netinet/in.h>

#include <thread>

namespace brigade::group {

// As long as it lives, the calling thread has no name server: every question fails at once.
// Costs nothing to speak of. Where LibTorch shows an address it also warns that it has no
// name.
class ResolverOff {
 public:
  ResolverOff();
  ~ResolverOff();
  ResolverOff(const ResolverOff&) = delete;
  ResolverOff& operator=(const ResolverOff&) = delete;

 protected:
  // The resolver of the calling thread asks this one alone. Without effect where the system
  // has no resolver to set.
  void ask(const sockaddr_in& server) const;

 private:
  const bool ready_;
  unsigned long options_ = 0;
  int servers_ = 0;
  sockaddr_in first_{};
};

// The same with a server that answers "no such name" to everything, which LibTorch takes
// without a word. For the moments when it always asks. A thread while it lives.
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
