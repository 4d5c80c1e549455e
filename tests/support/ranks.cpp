#include "support/ranks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "brigade/launch.h"

namespace brigade::testing {
namespace {

// Collects what fails in the workers: a file in memory that all of them append to.
class FailureFile {
 public:
  FailureFile() : fd_(memfd_create("failures", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no memory file");
  }
  ~FailureFile() { close(fd_); }
  void add(int rank, const std::string& text) const {
    const std::string line = "rank " + std::to_string(rank) + ": " + text + "\n";
    if (write(fd_, line.data(), line.size()) < 0) _exit(98);
  }
  std::string text() const {
    std::string all(static_cast<size_t>(lseek(fd_, 0, SEEK_END)), '\0');
    if (pread(fd_, all.data(), all.size(), 0) < 0) all = "the failures cannot be read";
    return all;
  }

 private:
  int fd_;
};

class FailureListener : public ::testing::EmptyTestEventListener {
 public:
  FailureListener(const FailureFile& file, int rank) : file_(file), rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const std::string where = result.file_name() ? result.file_name() : "?";
    file_.add(rank_,
              where + ":" + std::to_string(result.line_number()) + ": " + result.message());
  }

 private:
  const FailureFile& file_;
  int rank_;
};

void work(int rank, const std::function<void(ProcessGroup)>& body,
          const RankOptions& options, const FailureFile& failures) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailureListener(failures, rank));
  try {
    ProcessGroupOptions group;
    group.backend = "gloo";
    group.timeout = options.timeout;
    body(init_process_group(group));
  } catch (const std::exception& error) {
    failures.add(rank, std::string("exception: ") + error.what());
  }
  // A failed assertion does not end the others: they may have something to say as well.
}

}  // namespace

void run_ranks(int ranks, const std::function<void(ProcessGroup)>& body,
               const RankOptions& options) {
  setenv("OMP_NUM_THREADS", "1", 0);
  const FailureFile failures;
  std::string ending;
  try {
    launch(
        ranks, [&](int rank) { work(rank, body, options, failures); },
        {.grace = std::chrono::milliseconds(500), .wall = options.wall, .prefix = false});
  } catch (const LaunchError& error) {
    ending = error.what();
  }
  const std::string text = failures.text() + ending;
  if (!text.empty()) ADD_FAILURE() << text;
}

}  // namespace brigade::testing
