// SPDX-License-Identifier: BSD-3-Clause
// The exceptions that brigade throws. Every text says what was wrong, with its value, and
// what is expected or what to do.
#pragma once
#include <optional>
#include <stdexcept>
#include <string>

#if __cplusplus < 202002L
#error "Brigade needs C++20: compile with -std=c++20, or set CMAKE_CXX_STANDARD to 20"
#endif

// Exports a name from libbrigade.so. Everything else in it is hidden, so each class of a
// public header, and each function that is not defined there, is marked with it.
#define BRIGADE_API [[gnu::visibility("default")]]

namespace brigade {

// Kinds of errors. Texts are for people: a program decides by the type of an exception, or
// by this.
enum class Failure {
  other,       // none of the following, such as an exception of a hook's own
  config,      // ConfigError
  mismatch,    // MismatchError
  rendezvous,  // RendezvousError
  timeout,     // TimeoutError
  peer_lost,   // PeerLostError
  aborted,     // the group was aborted while a rank waited in it
};

// The base class of all exceptions below.
class BRIGADE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// A bad option, argument or environment variable. Programs exit with 2.
class BRIGADE_API ConfigError : public Error {
 public:
  using Error::Error;
};
// The ranks could not find each other.
class BRIGADE_API RendezvousError : public Error {
 public:
  using Error::Error;
};
// Something that waits for other ranks ran into the time limit.
class BRIGADE_API TimeoutError : public Error {
 public:
  using Error::Error;
};
// The connection to another rank broke while this one waited for it: the other has ended,
// or its host or the network between the two is lost.
class BRIGADE_API PeerLostError : public Error {
 public:
  explicit PeerLostError(const std::string& text, std::optional<int> rank = std::nullopt)
      : Error(text), rank_(rank) {}
  // The lost rank, by its number in the job; none where it is not known.
  std::optional<int> rank() const { return rank_; }

 private:
  std::optional<int> rank_;
};
// The ranks disagree about what must be equal: model, hook, options.
class BRIGADE_API MismatchError : public Error {
 public:
  using Error::Error;
};
// A hook or one of its collectives failed, on this rank or on another; thrown by
// backward(). All ranks throw it, with the same text, kind and rank.
class BRIGADE_API HookError : public Error {
 public:
  explicit HookError(const std::string& text, Failure kind = Failure::other,
                     std::optional<int> rank = std::nullopt)
      : Error(text), kind_(kind), rank_(rank) {}
  // The kind of the first failure: `other` if the hook threw an exception of its own.
  Failure kind() const { return kind_; }
  // The rank that failed, by its number in the job: its hook threw, it is gone, or it is
  // silent. None where it is not known.
  std::optional<int> rank() const { return rank_; }

 private:
  Failure kind_;
  std::optional<int> rank_;
};

}  // namespace brigade
