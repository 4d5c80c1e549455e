#include "launch/report.h"

#include <string.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace brigade::launching {

std::string ending_of(const WorkerFailure& failure) {
  if (!failure.signal) return "exit code " + std::to_string(failure.exit_code);
  const char* name = sigabbrev_np(failure.signal);
  return "signal " + (name ? std::string("SIG") + name : std::to_string(failure.signal));
}

int exit_code_of(const WorkerFailure& failure) {
  return failure.signal ? 128 + failure.signal : failure.exit_code;
}

std::string report(const WorkerFailure& failure, const std::vector<std::string>& others) {
  std::ostringstream text;
  text << "rank " << failure.rank << " failed: " << ending_of(failure) << "\n  host "
       << failure.host << ", pid " << failure.pid << ", local rank " << failure.local_rank
       << ", restarts so far " << failure.attempt;
  if (!failure.message.empty()) text << "\n  " << failure.message;
  if (!failure.last_lines.empty()) {
    text << "\n  its last lines on stderr:";
    for (const std::string& line : failure.last_lines) text << "\n  | " << line;
  }
  if (!failure.log_path.empty()) text << "\n  logs in " << failure.log_path;
  for (const std::string& other : others) text << "\n  then " << other;
  return text.str();
}

std::string to_json(const WorkerFailure& failure) {
  const nlohmann::json data = {{"rank", failure.rank},
                               {"local_rank", failure.local_rank},
                               {"attempt", failure.attempt},
                               {"host", failure.host},
                               {"pid", failure.pid},
                               {"exit_code", failure.exit_code},
                               {"signal", failure.signal},
                               {"message", failure.message},
                               {"last_lines", failure.last_lines},
                               {"log_path", failure.log_path}};
  return data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

WorkerFailure failure_from_json(const std::string& text) {
  const auto data = nlohmann::json::parse(text);
  return {.rank = data.at("rank"),
          .local_rank = data.at("local_rank"),
          .attempt = data.at("attempt"),
          .host = data.at("host"),
          .pid = data.at("pid"),
          .exit_code = data.at("exit_code"),
          .signal = data.at("signal"),
          .message = data.at("message"),
          .last_lines = data.at("last_lines"),
          .log_path = data.at("log_path")};
}

}  // namespace brigade::launching
