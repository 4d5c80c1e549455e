#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/input_file.h"
#include "brigade/error.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(AtomicFile, IsThereWhenItIsCommittedAndNotBefore) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  {
    base::AtomicFile file(path, ".new");
    file.write("never ");
    file.write("committed");
    EXPECT_EQ(base::read_whole(path + ".new"), "never committed");
  }
  EXPECT_EQ(files_in(folder.path()), 0U);
  for (const std::string text : {"named", "on the disk"}) {
    base::AtomicFile file(path, ".new");
    file.write(text);
    EXPECT_NE(base::read_whole(path), text);
    text == "named" ? file.commit() : file.commit_to_disk();
    EXPECT_EQ(base::read_whole(path), text);
  }
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(AtomicFile, SaysWhatItCouldNotWriteAndThatNothingHasChanged) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/no such folder/file";
  try {
    base::AtomicFile file(path, ".new");
    ADD_FAILURE() << "made " << path;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), "cannot create '" + path +
                                "': No such file or directory; nothing there has changed");
  }
}

// While it lives, no file of this process may be longer.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_DFL);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;

 private:
  rlimit before_{};
};

// With SIGXFSZ's default action the process would end, and leave half a file.
TEST(AtomicFile, ALimitOfItsSizeIsAnErrorAndLeavesNothing) {
  const TemporaryFolder folder;
  {
    const SizeLimit limit(1000);
    std::signal(SIGXFSZ, SIG_DFL);
    base::AtomicFile file(folder.path() + "/file", ".partial");
    EXPECT_THROW(file.write(std::string(3000, 'x')), Error);
  }
  EXPECT_EQ(files_in(folder.path()), 0U);
  sigset_t waiting;
  sigpending(&waiting);
  EXPECT_FALSE(sigismember(&waiting, SIGXFSZ));
}

TEST(WriteWhole, ReplacesWhatWasThere) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  base::write_whole(path, "a longer text");
  base::write_whole(path, "short");
  EXPECT_EQ(base::read_whole(path), "short");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(WriteWhole, LeavesTheOldFileAndNothingElseWhenItFails) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  base::write_whole(path, "old");
  {
    const SizeLimit limit(1000);
    EXPECT_THROW(base::write_whole(path, std::string(5000, 'x')), Error);
  }
  EXPECT_EQ(base::read_whole(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(RecordFile, KeepsWholeRecordsOnlyWhenItFails) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/records";
  base::RecordFile file(path);
  file.add("first\n");
  {
    const SizeLimit limit(1000);
    EXPECT_THROW(file.add(std::string(5000, 'x')), Error);
  }
  EXPECT_EQ(base::read_whole(path), "first\n");
  file.add("second\n");
  EXPECT_EQ(base::read_whole(path), "first\nsecond\n");
  base::RecordFile(path, /*append=*/true).add("third\n");
  EXPECT_EQ(base::read_whole(path), "first\nsecond\nthird\n");
}

TEST(OutputFolder, IsMadeOrRefusedByName) {
  const TemporaryFolder folder;
  base::check_output_folder(folder.path() + "/a/b", "--out");
  EXPECT_EQ(files_in(folder.path() + "/a/b"), 0U);
  // A killed process with the same number left this.
  base::write_whole(folder.path() + "/a/b/probe.part" + std::to_string(getpid()), "");
  base::check_output_folder(folder.path() + "/a/b", "--out");
  EXPECT_EQ(files_in(folder.path() + "/a/b"), 0U);
  base::write_whole(folder.path() + "/file", "");
  for (const std::string& bad : {folder.path() + "/file", std::string("/proc/x")}) {
    try {
      base::check_output_folder(bad, "--out");
      ADD_FAILURE() << bad;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("--out: cannot write into '" + bad),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace brigade::testing
