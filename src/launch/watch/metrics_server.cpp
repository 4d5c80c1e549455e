#include "launch/watch/metrics_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "brigade/error.h"

namespace brigade::launching {
namespace {

using std::chrono::steady_clock;

constexpr size_t kRequestBytes = 4096;
constexpr size_t kClients = 16;
constexpr std::chrono::seconds kPatience{2};

std::string answer(const char* status, const std::string& text) {
  return std::string("HTTP/1.1 ") + status +
         "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\nConnection: close\r\n\r\n" + text;
}

std::string answer_to(const std::string& request, const MetricsServer::Page& page) {
  const std::string line = request.substr(0, request.find_first_of("\r\n"));
  const size_t space = line.find(' ');
  const size_t end = line.rfind(" HTTP/1.");
  if (space == std::string::npos || end == std::string::npos || end <= space)
    return answer("400 Bad Request", "this is no HTTP\n");
  if (line.substr(0, space) != "GET")
    return answer("405 Method Not Allowed", "only GET is served\n");
  std::string path = line.substr(space + 1, end - space - 1);
  path = path.substr(0, path.find('?'));
  if (path != "/metrics" && path != "/")
    return answer("404 Not Found", "the numbers are at /metrics\n");
  try {
    return answer("200 OK", page());
  } catch (const std::exception& error) {  // training matters more
    return answer("500 Internal Server Error", std::string(error.what()) + "\n");
  }
}

struct Client {
  int fd;
  steady_clock::time_point until = steady_clock::now() + kPatience;
  std::string request = {};
  std::string reply = {};
  size_t sent = 0;
};

// A flood drives out its own oldest; who asks at once is done by then.
void make_room(std::vector<Client>& clients) {
  if (clients.size() < kClients) return;
  auto oldest =
      std::ranges::find_if(clients, [](const Client& one) { return one.reply.empty(); });
  if (oldest == clients.end()) oldest = clients.begin();
  close(oldest->fd);
  clients.erase(oldest);
}

// Reads or writes what can be without waiting. False: it is over.
bool serve_client(Client& client, const MetricsServer::Page& page) {
  if (client.reply.empty()) {
    char block[kRequestBytes];
    const ssize_t count = recv(client.fd, block, sizeof block, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    client.request.append(block, static_cast<size_t>(count));
    const bool whole = client.request.find("\r\n\r\n") != std::string::npos ||
                       client.request.find("\n\n") != std::string::npos;
    if (!whole && client.request.size() < kRequestBytes) return true;
    client.reply = whole ? answer_to(client.request, page)
                         : answer("431 Request Header Fields Too Large", "too long\n");
  }
  const ssize_t count = send(client.fd, client.reply.data() + client.sent,
                             client.reply.size() - client.sent, MSG_NOSIGNAL);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  client.sent += static_cast<size_t>(count);
  return client.sent < client.reply.size();
}

Listener listener_on(std::uint16_t port) try {
  return Listener("127.0.0.1", port);
} catch (const Error& error) {
  throw ConfigError("--metrics-port: " + std::string(error.what()));
}

}  // namespace

MetricsServer::MetricsServer(std::uint16_t port) : listener_(listener_on(port)) {
  fcntl(listener_.fd(), F_SETFL, fcntl(listener_.fd(), F_GETFL) | O_NONBLOCK);
}

void MetricsServer::start(Page page) {
  stop();
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0) return;  // no descriptors are left: not worth the job's end
  thread_ = std::thread(
      [this, page = std::move(page), stopped = stop_] { serve(page, stopped); });
}

void MetricsServer::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_, 1);
  thread_.join();
  close(stop_);
  stop_ = -1;
}

void MetricsServer::serve(const Page& page, int stopped) const {
  std::vector<Client> clients;
  while (true) {
    std::vector<pollfd> fds{{stopped, POLLIN, 0}};
    fds.push_back({listener_.fd(), POLLIN, 0});
    for (const Client& client : clients) {
      fds.push_back(
          {client.fd, static_cast<short>(client.reply.empty() ? POLLIN : POLLOUT), 0});
    }
    poll(fds.data(), fds.size(), clients.empty() ? -1 : 200);
    if (fds[0].revents) break;
    const auto now = steady_clock::now();
    for (size_t i = 0; i < clients.size(); ++i) {
      Client& client = clients[i];
      const bool over =
          (fds[i + 2].revents && !serve_client(client, page)) || now >= client.until;
      if (over) close(std::exchange(client.fd, -1));
    }
    std::erase_if(clients, [](const Client& client) { return client.fd < 0; });
    if (!fds[1].revents) continue;
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      make_room(clients);
      clients.push_back({fd});
    }
    if (fd < 0 && errno != EAGAIN) usleep(10'000);  // no descriptors: not as fast as it can
  }
  for (const Client& client : clients) close(client.fd);
}

}  // namespace brigade::launching
