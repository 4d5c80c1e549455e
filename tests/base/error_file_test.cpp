#include "base/files/error_file.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/files/read_whole.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

// Where write_error_file() writes, while this lives.
class ErrorFileAt {
 public:
  explicit ErrorFileAt(const std::string& path) {
    setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), /*overwrite=*/1);
  }
  ~ErrorFileAt() { unsetenv("TORCHELASTIC_ERROR_FILE"); }
};

TEST(ErrorFile, OfTwoThreadsThatFailAtOnceTheFirstWinsAndTheFileIsWhole) {
  const TemporaryFolder folder;
  const std::array messages{std::string(100000, 'a'), std::string(100000, 'b')};
  for (int round = 0; round < 200; ++round) {
    const std::string path = folder.path() + "/error" + std::to_string(round) + ".json";
    const ErrorFileAt here(path);
    std::barrier start(2);
    std::array<std::string, 2> seen;  // by each thread, after it has written
    const auto fail = [&](size_t thread) {
      start.arrive_and_wait();
      base::write_error_file(messages[thread], /*exit_code=*/3);
      seen[thread] = base::read_whole(path);
    };
    std::thread other(fail, 1);
    fail(0);
    other.join();

    const std::optional<base::RecordedError> error = base::read_error_file(path);
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->message == messages[0] || error->message == messages[1])
        << "round " << round << ": a mixture of " << error->message.size() << " bytes";
    EXPECT_EQ(error->exit_code, 3);
    const std::string text = base::read_whole(path);
    EXPECT_TRUE(seen[0] == text && seen[1] == text)
        << "round " << round << ": the file changed after it was there";
  }
  const auto files = std::distance(std::filesystem::directory_iterator(folder.path()), {});
  EXPECT_EQ(files, 200) << "a draft was left";
}

TEST(ErrorFile, AnEarlierErrorStays) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/error.json";
  const ErrorFileAt here(path);
  base::write_error_file("the cause");
  base::write_error_file("what followed");
  const std::optional<base::RecordedError> error = base::read_error_file(path);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "the cause");
}

}  // namespace
}  // namespace brigade::testing
