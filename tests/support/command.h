// Runs a program as a user would, and keeps its output.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace brigade::testing {

struct CommandResult {
  // 128 + signal if a signal ended it; 124 if it was killed at the wall limit.
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

// A running program. The destructor kills it with its process group.
class Command {
 public:
  explicit Command(std::vector<std::string> arguments, CommandOptions options = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reads until stdout has `text`. Returns false if the program or the limit ends first.
  bool wait_for_output(const std::string& text);
  // Whether it has ended; `finish` returns the result.
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

// The path build/bin/NAME.
std::string built_program(const std::string& name);
// The Python whose torch this was built with. Empty if none can import torch.
std::string python_with_torch();
// A fresh folder, removed by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }
  // Writes an executable file and returns its path.
  std::string script(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};
// Waits, 60 s at most, until no process has `text` in its command line or environment.
bool none_left(const std::string& text);

}  // namespace brigade::testing
