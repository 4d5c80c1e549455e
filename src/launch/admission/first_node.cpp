#include "launch/admission/first_node.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "brigade/error.h"
#include "group/store/tcp_store.h"
#include "launch/admission/admission.h"

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long one try to reach the first node may take.
constexpr milliseconds kOneTry{2000};
// A launcher that wants a secret asks for it at once; a store says nothing.
constexpr milliseconds kGreetingComes{300};
// How long node 0 may take to ask for it, or to answer.
constexpr milliseconds kVisitSilence{10'000};

// A connection that waits until a deadline, and no longer.
class Visit {
 public:
  Visit(const group::Address& there, steady_clock::time_point deadline)
      : deadline_(deadline),
        fd_(socket(there.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                   0)) {
    connected_ =
        fd_ >= 0 && (connect(fd_, there.get(), there.length) == 0 || wait(POLLOUT));
  }
  ~Visit() {
    if (fd_ >= 0) close(fd_);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  bool late() const { return steady_clock::now() >= deadline_; }
  bool say(const std::string& text) {
    return connected_ && send(fd_, text.data(), text.size(), MSG_NOSIGNAL) ==
                             static_cast<ssize_t>(text.size());
  }
  // Up to `most` bytes; empty when none came, or the other end has gone.
  std::string hear(size_t most) {
    std::array<char, 128> buffer;
    if (!connected_ || !wait(POLLIN)) return "";
    const ssize_t count = recv(fd_, buffer.data(), std::min(most, buffer.size()), 0);
    return count > 0 ? std::string(buffer.data(), static_cast<size_t>(count)) : "";
  }

 private:
  bool wait(short events) {
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - steady_clock::now());
    pollfd ready{fd_, events, 0};
    return poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) > 0;
  }

  const steady_clock::time_point deadline_;
  const int fd_;
  bool connected_ = false;
};

std::string name_of(const FirstNode& node) {
  return "the launcher of node 0 at " + group::endpoint(node.host, node.port);
}

// The store's own client would try for as long as it may, and not say why.
void check_that_none_is_asked_for(const FirstNode& node, const group::Address& there) {
  Visit visit(there, steady_clock::now() + std::min(kGreetingComes, node.limit));
  // All of it: closing a connection with something unread would take our own words back.
  if (!is_greeting(visit.hear(kGreetingLength))) return;
  visit.say(hello_without_secret());
  throw RendezvousError(name_of(node) +
                        " asks for the job's secret, and this one has none; give every "
                        "launcher the same --secret FILE, or BRIGADE_SECRET");
}

c10::intrusive_ptr<c10d::Store> open_store_at(const std::string& address,
                                              std::uint16_t port, milliseconds limit) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = limit;
  return group::open_tcp_store(address, options);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const FirstNode& node, std::string& why) {
  // Whether somebody listens there by now; the store's own client would fill stderr
  // meanwhile.
  const auto there =
      group::try_reach(node.host, node.port, steady_clock::now() + kOneTry, &why);
  if (!there) return nullptr;
  check_that_none_is_asked_for(node, *there);
  return open_store_at(there->host(), node.port, node.limit);
}

c10::intrusive_ptr<c10d::Store> open_store_through(std::uint16_t workers_door,
                                                   milliseconds limit) {
  return open_store_at("127.0.0.1", workers_door, limit);
}

std::optional<group::Address> knock(const FirstNode& node,
                                    std::shared_ptr<const Secret> secret,
                                    std::string& why) {
  const auto there =
      group::try_reach(node.host, node.port, steady_clock::now() + kOneTry, &why);
  if (!there) return std::nullopt;
  Visit visit(*there, steady_clock::now() + std::min(kVisitSilence, node.limit / 2));
  ClientHandshake handshake(std::move(secret), 0);
  while (true) {
    const std::string bytes = visit.hear(handshake.wants());
    if (bytes.empty() && visit.late() && !handshake.greeted()) {
      throw RendezvousError(name_of(node) +
                            " does not ask for a secret, and this one has one; give every "
                            "launcher the same --secret FILE, or BRIGADE_SECRET");
    }
    why = "it hung up before it had answered";
    if (bytes.empty()) return std::nullopt;
    const Handshake result = handshake.take(bytes);
    if (result == Handshake::admitted) return there;
    if (result == Handshake::refused) {
      throw RendezvousError(name_of(node) +
                            " and this one do not belong together: " + handshake.why());
    }
    const std::string message = handshake.message();
    if (!message.empty() && !visit.say(message)) return std::nullopt;
  }
}

}  // namespace brigade::launching
