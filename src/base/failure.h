// Kinds of errors, beside their texts.
#pragma once
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "brigade/error.h"

namespace brigade::base {

// The kind of a text that gloo, NCCL, c10d or its stores throw, by the only table of their
// phrases. `other` for any other text.
Failure classify(std::string_view text);
// The phrase of the table that `text` has; empty: none.
std::string_view phrase_in(std::string_view text);

// A group was aborted while this rank waited in it.
class AbortedError : public Error {
 public:
  using Error::Error;
};

struct Cause {
  Failure kind = Failure::other;
  // The rank that failed, by its number in the job; none where it is not known.
  std::optional<int> rank = {};
  std::string text;
};

// Decides by the type of the error; by the text only for LibTorch's errors about ranks,
// where one type stands for different kinds.
Cause failure_of(const std::exception& error);
Cause failure_of(const std::exception_ptr& error);
// Makes the exception of that kind, with that text.
std::exception_ptr make_error(const Cause& cause);

// Whether a failure of this kind only follows from another rank's.
bool is_echo(Failure kind);

// "peer_lost", for files and messages.
const char* name_of(Failure kind);
// None: no kind has this name.
std::optional<Failure> kind_named(std::string_view name);

std::string to_json(const Cause& cause);
// Any other text becomes the text of a cause without kind and rank.
Cause cause_from_json(const std::string& text);

}  // namespace brigade::base
