#include "launch/admission/admission.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <utility>

#include "brigade/error.h"

namespace brigade::launching {
namespace {

constexpr std::string_view kGreeting = "brigade admission 1\n";
constexpr size_t kNonce = 32;
constexpr size_t kProof = 32;
constexpr size_t kAttempt = 4;
constexpr size_t kHello = kAttempt + kNonce + kProof;
static_assert(kGreetingLength == kGreeting.size() + kNonce);
constexpr size_t kAnswer = 1 + kProof;

std::string fresh_nonce() {
  std::string nonce(kNonce, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNonce) != 1) {
    throw Error("the system gives no random bytes");
  }
  return nonce;
}

std::string big_endian(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(number >> shift & 0xFF);
  }
  return bytes;
}

std::uint32_t from_big_endian(std::string_view bytes) {
  std::uint32_t number = 0;
  for (char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

std::string prove(const Secret& secret, std::string_view role, std::uint32_t attempt,
                  std::string_view server_nonce, std::string_view client_nonce) {
  std::string text = "brigade admission 1 ";
  text.append(role).append(big_endian(attempt)).append(server_nonce).append(client_nonce);
  std::string proof(kProof, '\0');
  const auto key = secret.bytes();
  unsigned int length = 0;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char*>(text.data()), text.size(),
            reinterpret_cast<unsigned char*>(proof.data()), &length) ||
      length != kProof) {
    throw Error("OpenSSL cannot compute HMAC-SHA-256");
  }
  return proof;
}

bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

ServerHandshake::ServerHandshake(std::shared_ptr<const Secret> secret)
    : secret_(std::move(secret)), greeting_(std::string(kGreeting) + fresh_nonce()) {}

size_t ServerHandshake::wants() const { return kHello - hello_.size(); }

Handshake ServerHandshake::take(std::string_view bytes) {
  hello_ += bytes;
  if (wants() > 0) return Handshake::going_on;
  const std::string_view hello = hello_;
  const auto server_nonce = std::string_view(greeting_).substr(kGreeting.size());
  const auto client_nonce = hello.substr(kAttempt, kNonce);
  attempt_ = from_big_endian(hello.substr(0, kAttempt));
  const std::string expected =
      prove(*secret_, "client", attempt_, server_nonce, client_nonce);
  const bool good = same_proof(hello.substr(kAttempt + kNonce), expected);
  answer_ = good ? "y" + prove(*secret_, "server", attempt_, server_nonce, client_nonce)
                 : "n" + std::string(kProof, '\0');
  return good ? Handshake::admitted : Handshake::refused;
}

ClientHandshake::ClientHandshake(std::shared_ptr<const Secret> secret,
                                 std::uint32_t attempt)
    : secret_(std::move(secret)), attempt_(attempt), client_nonce_(fresh_nonce()) {}

size_t ClientHandshake::wants() const {
  return (greeted_ ? kAnswer : kGreetingLength) - received_.size();
}

std::string ClientHandshake::message() { return std::exchange(message_, ""); }

Handshake ClientHandshake::refuse(const char* why) {
  why_ = why;
  return Handshake::refused;
}

Handshake ClientHandshake::read_greeting() {
  if (!received_.starts_with(kGreeting)) {
    return refuse("it does not ask for a secret: was it started without one?");
  }
  server_nonce_ = received_.substr(kGreeting.size());
  message_ = big_endian(attempt_) + client_nonce_ +
             prove(*secret_, "client", attempt_, server_nonce_, client_nonce_);
  received_.clear();
  greeted_ = true;
  return Handshake::going_on;
}

Handshake ClientHandshake::take(std::string_view bytes) {
  received_ += bytes;
  if (wants() > 0) return Handshake::going_on;
  if (!greeted_) return read_greeting();
  if (received_.front() != 'y') {
    return refuse("it refused this host's secret: the two differ");
  }
  const std::string expected =
      prove(*secret_, "server", attempt_, server_nonce_, client_nonce_);
  if (!same_proof(std::string_view(received_).substr(1), expected)) {
    return refuse("it does not know the job's secret itself");
  }
  return Handshake::admitted;
}

bool is_greeting(std::string_view bytes) {
  return !bytes.empty() && bytes.starts_with(kGreeting.substr(0, bytes.size()));
}

std::string hello_without_secret() { return std::string(kHello, '\0'); }

}  // namespace brigade::launching
