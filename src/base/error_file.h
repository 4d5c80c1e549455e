// The file in which a worker writes for its launcher why it failed, in torchrun's format.
#pragma once
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "brigade/error.h"

namespace brigade::base {

struct RecordedError {
  std::string message;
  // The file's modification time: torchrun's stamp has whole seconds only.
  std::chrono::system_clock::time_point when;
  // The worker's exit code; 1 where the file does not have it.
  int exit_code = 1;
  // None where the file does not have it: another library or torch's @record wrote it.
  std::optional<Failure> kind = {};
  // The rank that failed first.
  std::optional<int> rank = {};
};

// Writes to TORCHELASTIC_ERROR_FILE, if set; an earlier error there is kept. Never throws:
// a worker that cannot write it still has its stderr.
void write_error_file(const std::string& message, int exit_code = 1,
                      std::optional<Failure> kind = std::nullopt,
                      std::optional<int> rank = std::nullopt) noexcept;
// The same with the error's type and text, and, for our own errors, kind and rank.
void write_error_file(const std::exception& error, int exit_code) noexcept;
// None when there is no file. If a file is not in torchrun's format, its whole text is the
// message.
std::optional<RecordedError> read_error_file(const std::string& path);

}  // namespace brigade::base
