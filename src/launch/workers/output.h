// The output of workers: split into lines, prefixed, shown, logged, and its end remembered.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "brigade/launch.h"

namespace brigade::launching {

// The end of a worker's output.
class LastLines {
 public:
  void add(const std::string& line);
  // Returns the lines for a report: the worker's own or, if there are none, the rest.
  const std::deque<std::string>& shown() const { return own_.empty() ? rest_ : own_; }
  const std::deque<std::string>& own() const { return own_; }
  // Returns torch's warnings ("[W1116 06:29:55.4 socket.cpp:752] …") and stack frames.
  const std::deque<std::string>& rest() const { return rest_; }

 private:
  std::deque<std::string> own_;
  std::deque<std::string> rest_;
};

// One stream of one worker, read from a pipe. Only whole lines reach the console, each in
// one write, so that lines of several workers never mix.
class WorkerOutput {
 public:
  struct Options {
    // 1 or 2; -1: not shown.
    int console = -1;
    std::string prefix;
    // Gets the bytes unchanged; -1: none. Owned.
    int log = -1;
  };
  // Owns `pipe`, and makes it non-blocking.
  WorkerOutput(int pipe, Options options);
  WorkerOutput(WorkerOutput&& other) noexcept;
  WorkerOutput& operator=(WorkerOutput&&) = delete;
  ~WorkerOutput();

  // Returns -1 once the other end is closed.
  int fd() const { return pipe_; }
  // Takes available bytes without waiting. Returns false if the console's reader has gone.
  bool pump();
  // Shows a last line without an end, and closes.
  bool finish();
  // Torch's own warnings and stack frames are kept separately, because they would push the
  // worker's own lines out.
  const LastLines& last_lines() const { return last_lines_; }
  // Why something could not be shown, a full disk for instance (errno); 0: all was.
  int lost() const { return lost_; }

 private:
  bool take(const char* data, size_t size);
  void end_line(std::string& shown);
  // Returns false if the console's reader has gone.
  bool show(const std::string& text);

  int pipe_;
  Options options_;
  std::string line_;
  bool after_return_ = false;
  int lost_ = 0;
  LastLines last_lines_;
};

// Returns "[rank] ", in colour if `console` is a terminal and NO_COLOR is not set.
std::string line_prefix(int rank, int console);
// Returns the last lines of a log file.
LastLines last_lines_of(const std::string& path);

// The targets of a worker's stdin, stdout and stderr.

// The launcher's side of one worker's streams.
class WorkerStreams {
 public:
  // Opens pipes and log files (in `folder`) as the options ask.
  WorkerStreams(const LaunchOptions& options, int rank, int local_rank, std::string folder);
  ~WorkerStreams();
  WorkerStreams(const WorkerStreams&) = delete;
  WorkerStreams& operator=(const WorkerStreams&) = delete;

  // The worker's ends, -1: the launcher's own; closed once the worker has been started.
  int in() const { return in_; }
  int out() const { return out_.worker_end; }
  int err() const { return err_.worker_end; }
  void close_workers_ends();

  // The launcher's ends to read from; null if there is no pipe.
  WorkerOutput* output(int stream);
  LastLines last_lines() const;
  const std::string& folder() const { return folder_; }

 private:
  struct Side {
    int worker_end = -1;
    std::optional<WorkerOutput> output;
  };
  void open_side(Side& side, int stream, const LaunchOptions& options, int rank,
                 int local_rank);

  std::string folder_;
  int in_ = -1;
  Side out_;
  Side err_;
};

}  // namespace brigade::launching
