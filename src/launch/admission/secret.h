// What the launchers of one job know and nobody else.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace brigade::launching {

// Never part of a message, a command line or a worker's environment; overwritten when it
// goes.
class Secret {
 public:
  static constexpr std::size_t kFewest = 16;
  static constexpr std::size_t kMost = 4096;
  static constexpr const char* kVariable = "BRIGADE_SECRET";

  // The file's bytes, less line ends at its end. Throws ConfigError: not a plain file, open
  // to other users (chmod 600), fewer than kFewest or more than kMost bytes.
  static std::shared_ptr<const Secret> from_file(const std::string& path);
  // BRIGADE_SECRET holds the secret itself; null when it is not set. Takes the variable out
  // of this process's environment. REQUIRES: no other thread reads the environment.
  static std::shared_ptr<const Secret> from_environment();

  // REQUIRES: as from_file; `source` is named in the error.
  Secret(std::string bytes, const std::string& source);
  ~Secret();
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace brigade::launching
