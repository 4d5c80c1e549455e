#include "base/failure.h"

#include <c10/util/Exception.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/exception_text.h"

namespace brigade::base {
namespace {

using nlohmann::json;

struct Phrase {
  std::string_view text;
  Failure kind;
};

// The first one that a text has counts. tests/engine/foreign_phrases_test.cpp and
// tests/cuda/failures_test.cpp make LibTorch throw each of them.
// clang-format off
constexpr std::array kPhrases{
    // gloo closes a connection on which something ran into its limit; this is what the
    // others on it get.
    Phrase{"Application timeout caused pair closure", Failure::peer_lost},
    Phrase{"imed out", Failure::timeout},                 // gloo, and sockets of c10d
    Phrase{"onnect timeout", Failure::timeout},           // gloo
    Phrase{"ait timeout", Failure::timeout},              // TCPStore and HashStore
    Phrase{"imeout waiting for key", Failure::timeout},   // FileStore
    Phrase{"Connection closed by peer", Failure::peer_lost},
    Phrase{"Connection reset by peer", Failure::peer_lost},
    Phrase{"Broken pipe", Failure::peer_lost},
    Phrase{"Connection was likely closed", Failure::peer_lost},  // TCPStore
    Phrase{"remote process exited", Failure::peer_lost},         // NCCL
    Phrase{"communicator was aborted", Failure::aborted},        // NCCL
};
// clang-format on

struct Name {
  Failure kind;
  const char* text;
};

constexpr std::array kNames{
    Name{Failure::other, "other"},       Name{Failure::config, "config"},
    Name{Failure::mismatch, "mismatch"}, Name{Failure::rendezvous, "rendezvous"},
    Name{Failure::timeout, "timeout"},   Name{Failure::peer_lost, "peer_lost"},
    Name{Failure::aborted, "aborted"},
};

const Phrase* find_phrase(std::string_view text) {
  for (const Phrase& phrase : kPhrases)
    if (text.find(phrase.text) != std::string_view::npos) return &phrase;
  return nullptr;
}

template <class Type>
const Type* as(const std::exception& error) {
  return dynamic_cast<const Type*>(&error);
}

}  // namespace

Failure classify(std::string_view text) {
  const Phrase* phrase = find_phrase(text);
  return phrase ? phrase->kind : Failure::other;
}

std::string_view phrase_in(std::string_view text) {
  const Phrase* phrase = find_phrase(text);
  return phrase ? phrase->text : std::string_view();
}

Cause failure_of(const std::exception& error) {
  Cause cause{.text = text_of(error)};
  if (const auto* hook = as<HookError>(error)) {
    cause.kind = hook->kind();
    cause.rank = hook->rank();
  } else if (const auto* lost = as<PeerLostError>(error)) {
    cause.kind = Failure::peer_lost;
    cause.rank = lost->rank();
  } else if (as<TimeoutError>(error)) {
    cause.kind = Failure::timeout;
  } else if (as<RendezvousError>(error)) {
    cause.kind = Failure::rendezvous;
  } else if (as<MismatchError>(error)) {
    cause.kind = Failure::mismatch;
  } else if (as<ConfigError>(error)) {
    cause.kind = Failure::config;
  } else if (as<AbortedError>(error)) {
    cause.kind = Failure::aborted;
  } else if (as<c10::DistError>(error)) {
    cause.kind = classify(cause.text);
  }
  return cause;
}

Cause failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return failure_of(exception);
  } catch (...) {
    return {.text = text_of(error)};
  }
}

std::exception_ptr make_error(const Cause& cause) {
  switch (cause.kind) {
    case Failure::config:
      return std::make_exception_ptr(ConfigError(cause.text));
    case Failure::mismatch:
      return std::make_exception_ptr(MismatchError(cause.text));
    case Failure::rendezvous:
      return std::make_exception_ptr(RendezvousError(cause.text));
    case Failure::timeout:
      return std::make_exception_ptr(TimeoutError(cause.text));
    case Failure::peer_lost:
      return std::make_exception_ptr(PeerLostError(cause.text, cause.rank));
    case Failure::aborted:
      return std::make_exception_ptr(AbortedError(cause.text));
    case Failure::other:
      break;
  }
  return std::make_exception_ptr(Error(cause.text));
}

bool is_echo(Failure kind) {
  return kind == Failure::peer_lost || kind == Failure::aborted;
}

const char* name_of(Failure kind) {
  for (const Name& name : kNames)
    if (name.kind == kind) return name.text;
  return "other";
}

std::optional<Failure> kind_named(std::string_view name) {
  for (const Name& each : kNames)
    if (each.text == name) return each.kind;
  return std::nullopt;
}

std::string to_json(const Cause& cause) {
  json data = {{"kind", name_of(cause.kind)}, {"text", cause.text}};
  if (cause.rank) data["rank"] = *cause.rank;
  return data.dump(-1, ' ', false, json::error_handler_t::replace);
}

Cause cause_from_json(const std::string& text) try {
  const json data = json::parse(text);
  Cause cause{
      .kind = kind_named(data.at("kind").get<std::string>()).value_or(Failure::other),
      .text = data.at("text")};
  if (data.contains("rank")) cause.rank = data["rank"].get<int>();
  return cause;
} catch (const json::exception&) {
  return {.text = text};
}

}  // namespace brigade::base
