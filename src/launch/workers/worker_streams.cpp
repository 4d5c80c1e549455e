#include "launch/workers/worker_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace brigade::launching {
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
  // Several readers of one stdin would each get pieces of it.
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
