// How two launchers prove to each other that they know the job's secret, without telling
// it.
//
// Pure: bytes in, bytes out. The *server* is the launcher of node 0, the *client* that of
// another host. A *nonce* is 32 random bytes of one connection.
// clang-format off
// A *proof* is
//   HMAC-SHA-256(secret, "brigade admission 1 ROLE" | attempt | server nonce | client nonce).
//
//   server  greeting   "brigade admission 1\n" | server nonce
//   client  hello      attempt (4 bytes, big end first) | client nonce | proof, ROLE client
//   server  answer     'y' | proof, ROLE server; or 'n' | 32 zeros
// clang-format on
//
// A hello that was overheard fits no other greeting, and no message serves in the other
// role. The client proves first: whoever merely connects gets nothing to try secrets on.
// What follows on the connection is neither signed nor encrypted.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "launch/admission/secret.h"

namespace brigade::launching {

enum class Handshake { going_on, admitted, refused };

class ServerHandshake {
 public:
  explicit ServerHandshake(std::shared_ptr<const Secret> secret);

  const std::string& greeting() const { return greeting_; }
  // How many bytes are still to come; not one more may be read from the connection.
  std::size_t wants() const;
  // REQUIRES: no more bytes than wanted.
  Handshake take(std::string_view bytes);
  bool has_begun() const { return !hello_.empty(); }
  // Once it is over: what to send, and which attempt's store the client wants.
  const std::string& answer() const { return answer_; }
  std::uint32_t attempt() const { return attempt_; }

 private:
  std::shared_ptr<const Secret> secret_;
  std::string greeting_;
  std::string hello_;
  std::string answer_;
  std::uint32_t attempt_ = 0;
};

class ClientHandshake {
 public:
  ClientHandshake(std::shared_ptr<const Secret> secret, std::uint32_t attempt);

  std::size_t wants() const;
  Handshake take(std::string_view bytes);
  // What to send next; empty: nothing. Gives each message once.
  std::string message();
  // Whether the other end has spoken, and as a launcher that asks for a secret does.
  bool greeted() const { return greeted_; }
  // Once refused: whose fault that is, "it refused this host's secret".
  const std::string& why() const { return why_; }

 private:
  Handshake refuse(const char* why);
  Handshake read_greeting();

  std::shared_ptr<const Secret> secret_;
  std::uint32_t attempt_;
  std::string received_;
  std::string server_nonce_;
  std::string client_nonce_;
  std::string message_;
  std::string why_;
  bool greeted_ = false;
};

constexpr std::size_t kGreetingLength = 52;
// Whether this is how a launcher begins that asks for a secret; all or a part of its
// greeting.
bool is_greeting(std::string_view bytes);
// The hello of a launcher that has none: its refusal tells the other side who was there.
std::string hello_without_secret();

}  // namespace brigade::launching
