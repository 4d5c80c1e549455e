#include "support/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "brigade/launch.h"
#include "support/folders_of_test.h"

namespace brigade::testing {
namespace {

// Collects the workers' failures, in a file in memory to which all of them append.
class FailureFile {
 public:
  FailureFile() : fd_(memfd_create("failures", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no memory file");
  }
  // Uses the file of the process that started this one.
  explicit FailureFile(const char* path)
      : fd_(open(path, O_WRONLY | O_APPEND | O_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("the failures cannot be told");
  }
  ~FailureFile() { close(fd_); }
  std::string path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
  }
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
    if (!options.hosts.empty()) group.node = options.hosts.at(static_cast<size_t>(rank));
    body(init_process_group(group));
  } catch (const std::exception& error) {
    failures.add(rank, std::string("exception: ") + error.what());
  }
  // A failed assertion does not end the others, which may have failures to report too.
}

// ThreadSanitizer has its own thread, so nothing can be forked. Workers are started anew,
// run the same test, and take part in the call of run_ranks for which they were started.
// BRIGADE_TEST_AFRESH=1 does the same without it, for debugging.
bool starts_afresh() {
#if defined(__SANITIZE_THREAD__)
  return true;
#else
  return std::getenv("BRIGADE_TEST_AFRESH") != nullptr;
#endif
}
constexpr const char* kCall = "BRIGADE_TEST_CALL";
constexpr const char* kFailures = "BRIGADE_TEST_FAILURES";

std::string name_of_test() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

// Returns which call of run_ranks in the present test this is.
int number_of_call() {
  static std::string test;
  static int calls = 0;
  if (name_of_test() != test) {
    test = name_of_test();
    calls = 0;
  }
  return ++calls;
}

void work_if_meant(int call, const std::function<void(ProcessGroup)>& body,
                   const RankOptions& options) {
  if (call != std::atoi(std::getenv(kCall))) return;
  {
    const FailureFile failures(std::getenv(kFailures));
    work(std::atoi(std::getenv("RANK")), body, options, failures);
  }
  std::exit(0);
}

void launch_afresh(int ranks, int call, const FailureFile& failures,
                   LaunchOptions options) {
  options.environment = {{kCall, std::to_string(call)},
                         {kFailures, failures.path()},
                         {kFoldersOfStarter, folders_of_this_test()}};
  launch(ranks, {"/proc/self/exe", "--gtest_brief=1", "--gtest_filter=" + name_of_test()},
         options);
}

}  // namespace

void run_ranks(int ranks, const std::function<void(ProcessGroup)>& body,
               const RankOptions& options) {
  setenv("OMP_NUM_THREADS", "1", 0);
  const int call = number_of_call();
  if (starts_afresh() && std::getenv(kCall)) return work_if_meant(call, body, options);
  const FailureFile failures;
  std::string ending;
  const LaunchOptions launch_options{
      .grace = std::chrono::milliseconds(500), .wall = options.wall, .prefix = false};
  try {
    if (starts_afresh()) {
      launch_afresh(ranks, call, failures, launch_options);
    } else {
      launch(
          ranks, [&](int rank) { work(rank, body, options, failures); }, launch_options);
    }
  } catch (const LaunchError& error) {
    ending = error.what();
  }
  const std::string text = failures.text() + ending;
  if (!text.empty()) ADD_FAILURE() << text;
}

}  // namespace brigade::testing
