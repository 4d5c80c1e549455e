#include "launch/workers/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

namespace brigade::launching {
namespace {

constexpr size_t kLinesKept = 20;
constexpr size_t kCharactersKept = 1000;
// A worker that never ends its line must not fill the launcher's memory.
constexpr size_t kLongestLine = 1 << 20;

// Returns 0, or the errno.
int write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = write(fd, data, size);
    if (count > 0) {
      data += count;
      size -= static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void keep(std::deque<std::string>& lines, const std::string& line) {
  lines.push_back(line.substr(0, kCharactersKept));
  if (lines.size() > kLinesKept) lines.pop_front();
}

// Matches "[W1116 06:29:55.453 reducer.cpp:1502] …", perhaps after "[rank0]:".
bool is_torchs(std::string_view line) {
  if (line.starts_with("[rank"))
    line.remove_prefix(std::min(line.find(':') + 1, line.size()));
  if (line.starts_with("frame #") || line.starts_with("Exception raised from "))
    return true;
  const auto digit = [&](size_t at) { return line[at] >= '0' && line[at] <= '9'; };
  return line.size() > 12 && (line.starts_with("[W") || line.starts_with("[I")) &&
         digit(2) && digit(5) && line[6] == ' ' && digit(7) && line[9] == ':';
}

}  // namespace

void LastLines::add(const std::string& line) { keep(is_torchs(line) ? rest_ : own_, line); }

WorkerOutput::WorkerOutput(int pipe, Options options)
    : pipe_(pipe), options_(std::move(options)) {
  fcntl(pipe_, F_SETFL, fcntl(pipe_, F_GETFL) | O_NONBLOCK);
}

WorkerOutput::WorkerOutput(WorkerOutput&& other) noexcept
    : pipe_(std::exchange(other.pipe_, -1)),
      options_(std::move(other.options_)),
      line_(std::move(other.line_)),
      after_return_(other.after_return_),
      lost_(other.lost_),
      last_lines_(std::move(other.last_lines_)) {
  other.options_.log = -1;
}

WorkerOutput::~WorkerOutput() {
  if (pipe_ >= 0) close(pipe_);
  if (options_.log >= 0) close(options_.log);
}

bool WorkerOutput::pump() {
  std::array<char, 65536> buffer;
  bool console_open = true;
  // A worker that writes without end must not delay the others' output.
  for (int round = 0; round < 16 && pipe_ >= 0; ++round) {
    const ssize_t count = read(pipe_, buffer.data(), buffer.size());
    if (count > 0) {
      console_open = take(buffer.data(), static_cast<size_t>(count)) && console_open;
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      return finish() && console_open;
    } else {
      break;
    }
  }
  return console_open;
}

bool WorkerOutput::take(const char* data, size_t size) {
  if (options_.log >= 0) write_all(options_.log, data, size);
  std::string shown;
  for (const char c : std::string_view(data, size)) {
    if (c == '\n' && after_return_) {
      after_return_ = false;
      continue;
    }
    // A progress bar ends its lines with a bare carriage return.
    after_return_ = c == '\r';
    if (c == '\n' || c == '\r') {
      end_line(shown);
    } else {
      line_.push_back(c);
      if (line_.size() >= kLongestLine) end_line(shown);
    }
  }
  return show(shown);
}

bool WorkerOutput::show(const std::string& text) {
  const int error =
      text.empty() ? 0 : write_all(options_.console, text.data(), text.size());
  if (error && error != EPIPE) lost_ = error;
  return error != EPIPE;
}

void WorkerOutput::end_line(std::string& shown) {
  if (options_.console >= 0) shown += options_.prefix + line_ + "\n";
  last_lines_.add(line_);
  line_.clear();
}

bool WorkerOutput::finish() {
  if (pipe_ < 0) return true;
  close(std::exchange(pipe_, -1));
  std::string shown;
  if (!line_.empty()) end_line(shown);
  return show(shown);
}

std::string line_prefix(int rank, int console) {
  const std::string plain = "[" + std::to_string(rank) + "]";
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term && std::string_view(term) == "dumb";
  if (!isatty(console) || (no_color && *no_color) || dumb) return plain + " ";
  constexpr std::array kColors{36, 33, 32, 35, 34, 31};
  return "\033[" + std::to_string(kColors[static_cast<size_t>(rank) % kColors.size()]) +
         "m" + plain + "\033[0m ";
}

LastLines last_lines_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  LastLines lines;
  if (!file) return lines;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - 32768));
  for (std::string line; std::getline(file, line);) lines.add(line);
  return lines;
}

namespace {

int checked(int fd, const std::string& what) {
  if (fd < 0) throw Error("cannot open " + what + ": " + std::strerror(errno));
  return fd;
}

bool has(const StreamChoice& choice, int local_rank, int stream) {
  const auto found = choice.by_local_rank.find(local_rank);
  const Streams streams = found == choice.by_local_rank.end() ? choice.all : found->second;
  return (static_cast<int>(streams) & stream) != 0;
}

int open_null() { return checked(open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"); }

std::string log_name(int stream) { return stream == 1 ? "/stdout.log" : "/stderr.log"; }

}  // namespace

WorkerStreams::WorkerStreams(const LaunchOptions& options, int rank, int local_rank,
                             std::string folder)
    : folder_(std::move(folder)) {
  // Several readers of one stdin would each get fragments of it.
  if (local_rank != 0) in_ = open_null();
  open_side(out_, 1, options, rank, local_rank);
  open_side(err_, 2, options, rank, local_rank);
}

void WorkerStreams::open_side(Side& side, int stream, const LaunchOptions& options,
                              int rank, int local_rank) {
  const auto& filter = options.local_ranks_filter;
  const bool shown =
      filter.empty() || std::ranges::find(filter, local_rank) != filter.end();
  const bool tee = has(options.tee, local_rank, stream);
  const bool redirect = has(options.redirects, local_rank, stream);
  int log = -1;
  if (tee || redirect) {
    const std::string path = folder_ + log_name(stream);
    log = checked(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644),
        path);
  }
  if (redirect && !tee) {
    side.worker_end = log;
  } else if (tee || options.prefix) {
    int ends[2];
    checked(pipe2(ends, O_CLOEXEC), "a pipe");
    side.worker_end = ends[1];
    side.output.emplace(
        ends[0], WorkerOutput::Options{
                     .console = shown ? stream : -1,
                     .prefix = options.prefix ? line_prefix(rank, stream) : std::string(),
                     .log = log});
  } else if (!shown) {
    side.worker_end = open_null();
  }
}

WorkerStreams::~WorkerStreams() { close_workers_ends(); }

void WorkerStreams::close_workers_ends() {
  for (int* fd : {&in_, &out_.worker_end, &err_.worker_end}) {
    if (*fd >= 0) close(std::exchange(*fd, -1));
  }
}

WorkerOutput* WorkerStreams::output(int stream) {
  Side& side = stream == 1 ? out_ : err_;
  return side.output ? &*side.output : nullptr;
}

LastLines WorkerStreams::last_lines() const {
  if (err_.output) return err_.output->last_lines();
  return last_lines_of(folder_ + log_name(2));
}

}  // namespace brigade::launching
