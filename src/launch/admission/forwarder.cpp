#include "launch/admission/forwarder.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "launch/admission/admission.h"
#include "launch/admission/local_peers.h"

namespace brigade::launching {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// As many refusals are shown; a stranger shall not fill the log.
constexpr int kMostComplaints = 5;

std::string peer_of(int socket) {
  group::Address address;
  address.length = sizeof address.storage;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) !=
      0) {
    return "?";
  }
  return group::endpoint(address.host(), address.port());
}

std::string place_of(int socket) {
  const group::Address own = group::own_address(socket);
  return group::endpoint(own.host(), own.port());
}

void send_at_once(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

// Sends what the socket takes, and keeps the rest. False: the connection has gone.
bool send_some(int socket, std::string& pending) {
  while (!pending.empty()) {
    const ssize_t count = send(socket, pending.data(), pending.size(), MSG_NOSIGNAL);
    if (count < 0) return would_block(errno);
    pending.erase(0, static_cast<size_t>(count));
  }
  return true;
}

// Reads up to `most` bytes. None: there are none now. Empty: the connection has gone.
std::optional<std::string_view> receive(int socket, std::span<char> into) {
  const ssize_t count = recv(socket, into.data(), into.size(), 0);
  if (count < 0 && would_block(errno)) return std::nullopt;
  return std::string_view(into.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
}

enum class Stage { proving, connecting, asking, flowing };

// A connection from `in`, who came, to `out`, where the store is.
struct Connection {
  ~Connection() {
    if (in >= 0) close(in);
    if (out >= 0) store ? store->disconnect(out) : void(close(out));
  }
  int in = -1;
  int out = -1;
  // Whose connection `out` is; null: one to another host.
  std::shared_ptr<GuardedStore> store;
  Stage stage = Stage::proving;
  // Of all stages but `flowing`.
  steady_clock::time_point deadline;
  // For texts.
  std::string from;
  std::string to = "the store";
  std::optional<ServerHandshake> server;
  std::optional<ClientHandshake> client;
  // Not taken by the other end yet; nothing more is read while there is some.
  std::string to_in;
  std::string to_out;

  short in_events() const;
  short out_events() const;
};

short Connection::in_events() const {
  const bool reads = stage == Stage::proving || (stage == Stage::flowing && to_out.empty());
  return static_cast<short>((reads ? POLLIN : 0) | (to_in.empty() ? 0 : POLLOUT));
}

short Connection::out_events() const {
  const bool reads = stage == Stage::asking || (stage == Stage::flowing && to_in.empty());
  const bool writes = stage == Stage::connecting || !to_out.empty();
  return static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
}

// Passes on what is there. False: one end has gone.
bool pass_on(int from, int to, std::string& pending, std::span<char> buffer) {
  if (!pending.empty()) return true;
  const auto bytes = receive(from, buffer);
  if (!bytes) return true;
  if (bytes->empty()) return false;
  pending = *bytes;
  return send_some(to, pending);
}

}  // namespace

// What the thread does. Only what `mutex_` guards is seen by others once it runs.
class Forwarder::Carrier {
 public:
  Carrier(std::string mark, milliseconds limit) : limit_(limit), peers_(std::move(mark)) {
    if (wake_ < 0) throw Error(std::string("no eventfd: ") + std::strerror(errno));
  }
  ~Carrier();

  void add_door(int listener, std::shared_ptr<const Secret> secret);
  std::vector<int> fds() const;
  void run();
  void stop();
  void lead_to(int attempt, std::shared_ptr<GuardedStore> store);
  void lead_to(const RemoteDoor& door);
  void begin(int attempt);
  std::string failure() const;

 private:
  struct Door {
    int listener = -1;
    // Null: the workers' door.
    std::shared_ptr<const Secret> secret;
  };

  void carry();
  bool stopped() const;
  int patience() const;
  void accept_all(const Door& door);
  void welcome(std::unique_ptr<Connection> connection, const Door& door);
  bool is_of_the_job(const Connection& connection);
  void make_room();
  bool advance(Connection& connection, short in_events, short out_events);
  bool read_proof(Connection& connection);
  bool go_on(Connection& connection, std::optional<int> attempt);
  bool finish_connecting(Connection& connection);
  bool ask_for_admission(Connection& connection);
  void expire(Connection& connection);
  bool lost_way(const Connection& connection, const std::string& why);
  void complain(const std::string& text);

  const milliseconds limit_;
  const int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::vector<Door> doors_;
  LocalPeers peers_;
  std::vector<std::unique_ptr<Connection>> connections_;
  int complaints_ = 0;
  std::array<char, 65'536> buffer_;

  mutable std::mutex mutex_;
  bool stop_ = false;
  int attempt_ = 0;
  std::map<int, std::shared_ptr<GuardedStore>> stores_;
  RemoteDoor remote_;
  std::string failure_;
};

Forwarder::Carrier::~Carrier() {
  for (const Door& door : doors_) close(door.listener);
  close(wake_);
}

void Forwarder::Carrier::add_door(int listener, std::shared_ptr<const Secret> secret) {
  fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK);
  doors_.push_back({listener, std::move(secret)});
}

std::vector<int> Forwarder::Carrier::fds() const {
  std::vector<int> all{wake_};
  for (const Door& door : doors_) all.push_back(door.listener);
  return all;
}

void Forwarder::Carrier::lead_to(int attempt, std::shared_ptr<GuardedStore> store) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(stores_, [](const auto& entry) { return entry.first != 0; });
  stores_[attempt] = std::move(store);
  attempt_ = attempt;
}

void Forwarder::Carrier::lead_to(const RemoteDoor& door) {
  const std::scoped_lock lock(mutex_);
  remote_ = door;
}

void Forwarder::Carrier::begin(int attempt) {
  const std::scoped_lock lock(mutex_);
  attempt_ = attempt;
}

std::string Forwarder::Carrier::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void Forwarder::Carrier::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  const std::uint64_t one = 1;
  if (write(wake_, &one, sizeof one) < 0) return;
}

bool Forwarder::Carrier::stopped() const {
  const std::scoped_lock lock(mutex_);
  return stop_;
}

void Forwarder::Carrier::run() {
  try {
    while (!stopped()) carry();
  } catch (const std::exception& error) {
    const std::scoped_lock lock(mutex_);
    failure_ = "the launcher cannot pass connections on to the store any more: " +
               base::report_of(error);
  }
  // Those that still wait shall see the end, not silence.
  connections_.clear();
  for (const Door& door : doors_) shutdown(door.listener, SHUT_RDWR);
}

// Until the next deadline, in milliseconds.
int Forwarder::Carrier::patience() const {
  auto next = steady_clock::time_point::max();
  for (const auto& connection : connections_) {
    if (connection->stage != Stage::flowing) next = std::min(next, connection->deadline);
  }
  if (next == steady_clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(next - steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

void Forwarder::Carrier::carry() {
  std::vector<pollfd> fds{{wake_, POLLIN, 0}};
  for (const Door& door : doors_) fds.push_back({door.listener, POLLIN, 0});
  for (const auto& connection : connections_) {
    fds.push_back({connection->in, connection->in_events(), 0});
    fds.push_back({connection->out, connection->out_events(), 0});
  }
  if (poll(fds.data(), fds.size(), patience()) < 0) {
    if (errno == EINTR) return;
    // What poll() calls an invalid argument is more descriptors than the limit allows.
    if (errno == EINVAL) errno = EMFILE;
    throw Error(std::string("poll: ") + std::strerror(errno) +
                (errno == EMFILE ? " (see ulimit -n)" : ""));
  }
  const auto now = steady_clock::now();
  const pollfd* events = fds.data() + 1 + doors_.size();
  for (auto& connection : connections_) {
    bool alive = advance(*connection, events[0].revents, events[1].revents);
    events += 2;
    if (alive && connection->stage != Stage::flowing && now >= connection->deadline) {
      expire(*connection);
      alive = false;
    }
    if (!alive) connection.reset();
  }
  std::erase(connections_, nullptr);
  for (size_t i = 0; i < doors_.size(); ++i) {
    if (fds[1 + i].revents) accept_all(doors_[i]);
  }
}

void Forwarder::Carrier::accept_all(const Door& door) {
  // To find out who came to the workers' door takes milliseconds: one at a time, so that a
  // flood of strangers does not hold up those who are in.
  const size_t at_once = door.secret ? kMostUnproven : 1;
  for (size_t i = 0; i < at_once; ++i) {
    auto connection = std::make_unique<Connection>();
    connection->in = accept4(door.listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection->in >= 0) {
      welcome(std::move(connection), door);
      continue;
    }
    if (errno == EAGAIN) return;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ||
        errno == EINVAL || errno == EBADF) {
      throw Error(std::string("accept: ") + std::strerror(errno) +
                  (errno == EMFILE ? " (see ulimit -n)" : ""));
    }
    // Else it is this one connection's fault.
  }
}

void Forwarder::Carrier::welcome(std::unique_ptr<Connection> connection, const Door& door) {
  send_at_once(connection->in);
  connection->from = peer_of(connection->in);
  connection->deadline = steady_clock::now() + kProofLimit;
  bool alive = true;
  if (door.secret) {
    make_room();
    connection->server.emplace(door.secret);
    connection->to_in = connection->server->greeting();
    alive = send_some(connection->in, connection->to_in);
  } else {
    alive = is_of_the_job(*connection) && go_on(*connection, std::nullopt);
  }
  if (alive) connections_.push_back(std::move(connection));
}

bool Forwarder::Carrier::is_of_the_job(const Connection& connection) {
  const LocalPeers::Answer answer = peers_.ask(connection.in);
  if (!answer.member && !answer.gone) {
    complain("refused a connection from " + connection.from + " at " +
             place_of(connection.in) + ": a process of user " +
             std::to_string(answer.user) + " that is no part of the job");
  }
  return answer.member;
}

// A flood drives out its own oldest connection; who knows the secret is done by then.
void Forwarder::Carrier::make_room() {
  const auto unproven = [](const auto& connection) {
    return connection && connection->stage == Stage::proving;
  };
  const auto count = std::ranges::count_if(connections_, unproven);
  if (static_cast<size_t>(count) < kMostUnproven) return;
  connections_.erase(std::ranges::find_if(connections_, unproven));
}

bool Forwarder::Carrier::advance(Connection& connection, short in_events,
                                 short out_events) {
  // A side that has gone takes nothing any more.
  const bool in_gone = in_events & (POLLHUP | POLLERR);
  const bool out_gone = out_events & (POLLHUP | POLLERR);
  if (in_gone && (connection.stage != Stage::flowing || !connection.to_out.empty()))
    return false;
  if (out_gone && connection.stage == Stage::flowing && !connection.to_in.empty())
    return false;
  if (!send_some(connection.in, connection.to_in)) return false;
  switch (connection.stage) {
    case Stage::proving:
      return !in_events || read_proof(connection);
    case Stage::connecting:
      return !out_events || finish_connecting(connection);
    case Stage::asking:
      return send_some(connection.out, connection.to_out) &&
             (!out_events || ask_for_admission(connection));
    case Stage::flowing:
      break;
  }
  if (!send_some(connection.out, connection.to_out)) return false;
  const auto ready = [](short events) { return events & (POLLIN | POLLHUP | POLLERR); };
  return (!ready(in_events) ||
          pass_on(connection.in, connection.out, connection.to_out, buffer_)) &&
         (!ready(out_events) ||
          pass_on(connection.out, connection.in, connection.to_in, buffer_));
}

bool Forwarder::Carrier::read_proof(Connection& connection) {
  ServerHandshake& server = *connection.server;
  const auto bytes = receive(connection.in, std::span(buffer_).first(server.wants()));
  if (!bytes) return true;
  if (bytes->empty()) return false;
  const Handshake result = server.take(*bytes);
  if (result == Handshake::going_on) return true;
  connection.to_in += server.answer();
  if (!send_some(connection.in, connection.to_in)) return false;
  if (result == Handshake::refused) {
    complain("refused a connection from " + connection.from + " at " +
             place_of(connection.in) + ": it does not know the job's secret");
    return false;
  }
  return go_on(connection, static_cast<int>(server.attempt()));
}

// On the way to the store: of the attempt that is asked for, or the one of now.
bool Forwarder::Carrier::go_on(Connection& connection, std::optional<int> attempt) {
  const std::scoped_lock lock(mutex_);
  connection.deadline = steady_clock::now() + limit_;
  connection.stage = Stage::connecting;
  if (remote_.secret && !connection.server) {
    connection.client.emplace(remote_.secret, static_cast<std::uint32_t>(attempt_));
    const group::Address& there = remote_.address;
    connection.to += " of node 0 at " + group::endpoint(there.host(), there.port());
    connection.out =
        socket(there.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection.out >= 0 && connect(connection.out, there.get(), there.length) != 0 &&
        errno != EINPROGRESS) {
      return lost_way(connection, std::strerror(errno));
    }
  } else {
    const auto store = stores_.find(attempt.value_or(attempt_));
    if (store == stores_.end()) return false;
    connection.store = store->second;
    connection.out = connection.store->connect();
  }
  if (connection.out < 0 && (errno == EMFILE || errno == ENFILE)) {
    throw Error(std::string("socket: ") + std::strerror(errno) + " (see ulimit -n)");
  }
  if (connection.out < 0) return lost_way(connection, std::strerror(errno));
  send_at_once(connection.out);
  return true;
}

bool Forwarder::Carrier::finish_connecting(Connection& connection) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(connection.out, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error) return lost_way(connection, std::strerror(error));
  connection.stage = connection.client ? Stage::asking : Stage::flowing;
  return true;
}

bool Forwarder::Carrier::ask_for_admission(Connection& connection) {
  ClientHandshake& client = *connection.client;
  const auto bytes = receive(connection.out, std::span(buffer_).first(client.wants()));
  if (!bytes) return true;
  if (bytes->empty()) return lost_way(connection, "it hung up");
  const Handshake result = client.take(*bytes);
  if (result == Handshake::refused) return lost_way(connection, client.why());
  connection.to_out += client.message();
  if (result == Handshake::admitted) connection.stage = Stage::flowing;
  return send_some(connection.out, connection.to_out);
}

void Forwarder::Carrier::expire(Connection& connection) {
  if (connection.stage != Stage::proving) {
    lost_way(connection,
             "no answer within " + std::to_string(limit_.count() / 1000) + " s");
  } else if (connection.server->has_begun()) {
    complain("refused a connection from " + connection.from + " at " +
             place_of(connection.in) + ": it does not speak as a launcher with a secret");
  }
}

bool Forwarder::Carrier::lost_way(const Connection& connection, const std::string& why) {
  complain("a connection from " + connection.from + " does not get to " + connection.to +
           ": " + why);
  return false;
}

void Forwarder::Carrier::complain(const std::string& text) {
  if (++complaints_ > kMostComplaints) return;
  std::fprintf(stderr, "brigade: %s%s\n", text.c_str(),
               complaints_ == kMostComplaints ? " (further ones are not shown)" : "");
}

Forwarder::Forwarder(std::string mark, milliseconds limit)
    : carrier_(std::make_unique<Carrier>(std::move(mark), limit)) {}

Forwarder::~Forwarder() {
  carrier_->stop();
  if (thread_.joinable()) thread_.join();
}

void Forwarder::open_workers_door(int listener) { carrier_->add_door(listener, nullptr); }

void Forwarder::open_launchers_door(int listener, std::shared_ptr<const Secret> secret) {
  carrier_->add_door(listener, std::move(secret));
}

std::vector<int> Forwarder::fds() const { return carrier_->fds(); }

void Forwarder::start() {
  thread_ = std::thread([carrier = carrier_.get()] { carrier->run(); });
}

void Forwarder::lead_to(int attempt, std::shared_ptr<GuardedStore> store) {
  carrier_->lead_to(attempt, std::move(store));
}

void Forwarder::lead_to(const RemoteDoor& door) { carrier_->lead_to(door); }

void Forwarder::begin(int attempt) { carrier_->begin(attempt); }

std::string Forwarder::failure() const { return carrier_->failure(); }

}  // namespace brigade::launching
