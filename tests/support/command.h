// Runs a program as a user would, and keeps what it says.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace brigade::testing {

struct CommandResult {
  // 128 + signal when a signal ended it; 124 when it was killed at the wall limit.
  int exit_code = -1;
  std::string out;
  std::string err;
  // Lines of stdout, sorted, for output without a fixed order.
  std::vector<std::string> sorted_lines() const;
};

struct CommandOptions {
  // Added to this process's environment; an empty value removes the variable.
  std::map<std::string, std::string> environment;
  std::string stdin_text;
  std::chrono::milliseconds wall{100'000};
};

// A program under way. Killed, with its process group, when the object goes.
class Command {
 public:
  explicit Command(std::vector<std::string> arguments, CommandOptions options = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reads until stdout holds `text`; false when it ended, or the limit came, before.
  bool wait_for_output(const std::string& text);
  // Whether it has ended; `finish` gives the result.
  bool has_ended() const;
  // stdout so far.
  const std::string& said() const { return result_.out; }
  CommandResult finish();

 private:
  bool read_some();

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::chrono::steady_clock::time_point deadline_;
  CommandResult result_;
};

CommandResult run_command(std::vector<std::string> arguments, CommandOptions options = {});

// build/bin/NAME.
std::string built_program(const std::string& name);
// The Python with the torch that this was built with. Empty if there is none that can
// import torch.
std::string python_with_torch();
// A fresh folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }
  // Writes an executable file and gives its path.
  std::string script(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};
// Waits, 60 s at most, until no process has `text` in its command line or environment.
bool none_left(const std::string& text);

}  // namespace brigade::testing
