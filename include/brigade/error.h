// SPDX-License-Identifier: BSD-3-Clause
// The exceptions that brigade throws. Every text says what was wrong, with its value, and
// what is expected or what to do.
#pragma once
#include <stdexcept>
#include <string>

#include "brigade/export.h"

namespace brigade {

// The base of all of them.
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
// The ranks disagree about what must be equal: model, hook, options.
class BRIGADE_API MismatchError : public Error {
 public:
  using Error::Error;
};

}  // namespace brigade
