// What workers write: split into lines, prefixed, shown, logged, and its end remembered.
#pragma once
#include <deque>
#include <string>
#include <vector>

namespace brigade::launching {

// One stream of one worker, read from a pipe. Whole lines only reach the console, each in
// one write, so that lines of several workers never mix.
class WorkerOutput {
 public:
  struct Options {
    // 1 or 2; -1: not shown.
    int console = -1;
    std::string prefix;
    // Gets the bytes as they are; -1: none. Owned.
    int log = -1;
  };
  // Owns `pipe`, and makes it non-blocking.
  WorkerOutput(int pipe, Options options);
  WorkerOutput(WorkerOutput&& other) noexcept;
  WorkerOutput& operator=(WorkerOutput&&) = delete;
  ~WorkerOutput();

  // -1 once the other end is closed.
  int fd() const { return pipe_; }
  // Takes what is there without waiting. False: the console's reader has gone.
  bool pump();
  // Shows a last line that has no end, and closes.
  bool finish();
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  bool take(const char* data, size_t size);
  void end_line(std::string& shown);

  int pipe_;
  Options options_;
  std::string line_;
  bool after_return_ = false;
  std::deque<std::string> last_lines_;
};

// "[rank] ", in colour when `console` is a terminal and NO_COLOR is not set.
std::string line_prefix(int rank, int console);
// The last lines of a log file.
std::deque<std::string> last_lines_of(const std::string& path);

}  // namespace brigade::launching
