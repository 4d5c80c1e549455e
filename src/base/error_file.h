// The file through which a worker tells its launcher why it failed, in torchrun's format.
#pragma once
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "brigade/error.h"

namespace brigade::base {

struct RecordedError {
  std::string message;
  // When it was written; the file's own time, for torchrun's stamp has whole seconds only.
  std::chrono::system_clock::time_point when;
  // What the worker was going to exit with; 1 where the file does not say.
  int exit_code = 1;
  // None where the file does not say: another library or torch's own @record wrote it.
  std::optional<Failure> kind = {};
  // Whose failure it was.
  std::optional<int> rank = {};
};

// Writes to TORCHELASTIC_ERROR_FILE, if set; a first error there is kept. Never throws: a
// worker that cannot write it still has its stderr.
void write_error_file(const std::string& message, int exit_code = 1,
                      std::optional<Failure> kind = std::nullopt,
                      std::optional<int> rank = std::nullopt) noexcept;
// The same with the type and text of an error; one of ours has a kind and perhaps a rank.
void write_error_file(const std::exception& error, int exit_code) noexcept;
// None when there is no file. A file that is not in torchrun's format gives its text.
std::optional<RecordedError> read_error_file(const std::string& path);

}  // namespace brigade::base
