// The file through which a worker tells its launcher why it failed, in torchrun's format.
#pragma once
#include <chrono>
#include <optional>
#include <string>

namespace brigade::base {

struct RecordedError {
  std::string message;
  // When it was written; the file's own time, for torchrun's stamp has whole seconds only.
  std::chrono::system_clock::time_point when;
  // What the worker was going to exit with; 1 where the file does not say.
  int exit_code = 1;
};

// Writes to TORCHELASTIC_ERROR_FILE, if set; a first error there is kept. Never throws: a
// worker that cannot write it still has its stderr.
void write_error_file(const std::string& message, int exit_code = 1) noexcept;
// None when there is no file. A file that is not in torchrun's format gives its text.
std::optional<RecordedError> read_error_file(const std::string& path);

}  // namespace brigade::base
