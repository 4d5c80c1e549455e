#include "base/error_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/exception_text.h"
#include "base/failure.h"
#include "base/input_file.h"

namespace brigade::base {
namespace {

using nlohmann::json;

// The fields beside the message; null if there are none.
json extra_in(const std::string& text, const std::string& name) {
  const json data = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json::json_pointer place("/message/extraInfo/" + name);
  return data.is_object() && data.contains(place) ? data[place] : json();
}

int exit_code_in(const std::string& text) {
  const json found = extra_in(text, "exit_code");
  const int64_t code = found.is_number_integer() ? found.get<int64_t>() : 1;
  return code >= 1 && code <= 255 ? static_cast<int>(code) : 1;
}

std::optional<Failure> kind_in(const std::string& text) {
  const json found = extra_in(text, "kind");
  return found.is_string() ? kind_named(found.get<std::string>()) : std::nullopt;
}

std::optional<int> rank_in(const std::string& text) {
  const json found = extra_in(text, "rank");
  return found.is_number_integer() ? std::optional(found.get<int>()) : std::nullopt;
}

std::string message_in(const std::string& text) {
  const json data = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!data.is_object() || !data.contains("message")) return text;
  const json& message = data["message"];
  if (message.is_string()) return message.get<std::string>();
  if (message.is_object() && message.contains("message") &&
      message["message"].is_string()) {
    return message["message"].get<std::string>();
  }
  return text;
}

}  // namespace

void write_error_file(const std::string& message, int exit_code,
                      std::optional<Failure> kind, std::optional<int> rank) noexcept try {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!path || !*path) return;
  json data = {{"message",
                {{"message", message},
                 {"extraInfo",
                  {{"timestamp", std::to_string(std::time(nullptr))},
                   {"py_callstack", message},
                   {"exit_code", exit_code}}}}}};
  json& extra = data["message"]["extraInfo"];
  if (kind) extra["kind"] = name_of(*kind);
  if (rank) extra["rank"] = *rank;
  const std::string text = data.dump(-1, ' ', false, json::error_handler_t::replace);
  // Each thread writes a draft of its own and links it into place, so that a reader never
  // sees half of it. The link fails where there is an earlier error, which then stays.
  const std::string draft = std::string(path) + "." + std::to_string(gettid());
  { std::ofstream(draft) << text; }
  static_cast<void>(link(draft.c_str(), path));
  unlink(draft.c_str());
} catch (...) {
}

void write_error_file(const std::exception& error, int exit_code) noexcept try {
  const bool ours = dynamic_cast<const Error*>(&error);
  const Cause cause = failure_of(error);
  write_error_file(describe(error), exit_code,
                   ours ? std::optional(cause.kind) : std::nullopt, cause.rank);
} catch (...) {
}

std::optional<RecordedError> read_error_file(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || info.st_size == 0) return std::nullopt;
  const std::string text = read_whole(path);
  using namespace std::chrono;
  const auto since_epoch = seconds(info.st_mtim.tv_sec) + nanoseconds(info.st_mtim.tv_nsec);
  return RecordedError{
      message_in(text),
      system_clock::time_point(duration_cast<system_clock::duration>(since_epoch)),
      exit_code_in(text), kind_in(text), rank_in(text)};
}

}  // namespace brigade::base
