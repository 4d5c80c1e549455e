// The error that a worker reports to its launcher through a file.
#include "base/error_file.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/input_file.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

// While it lives, write_error_file() writes to this path.
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

TEST(ErrorFile, HasKindAndRankOfTheErrorBesideTorchrunsOwnFields) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/error.json";
  const ErrorFileAt here(path);
  base::write_error_file(HookError("rank 2 is gone", Failure::peer_lost, 2), 1);
  const auto error = base::read_error_file(path);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "brigade::HookError: rank 2 is gone");
  EXPECT_EQ(error->kind, Failure::peer_lost);
  EXPECT_EQ(error->rank, 2);
  EXPECT_EQ(error->exit_code, 1);
  std::ifstream in(path);
  const auto data = nlohmann::json::parse(in);
  const auto& extra = data.at("message").at("extraInfo");
  EXPECT_EQ(extra.at("kind"), "peer_lost");
  EXPECT_EQ(extra.at("rank"), 2);
  EXPECT_TRUE(extra.at("timestamp").is_string()) << "torchrun reads it";
  EXPECT_EQ(extra.at("py_callstack"), error->message);
}

TEST(ErrorFile, KeepsTheExitCodeBesideTheKind) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/error.json";
  const ErrorFileAt here(path);
  base::write_error_file(ConfigError("no such option"), 2);
  ASSERT_TRUE(base::read_error_file(path));
  EXPECT_EQ(base::read_error_file(path)->kind, Failure::config);
  EXPECT_EQ(base::read_error_file(path)->rank, std::nullopt);
  EXPECT_EQ(base::read_error_file(path)->exit_code, 2);
}

// The launcher then has only the text.
TEST(ErrorFile, SaysNoKindOfAnErrorThatIsNotOurs) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/error.json";
  const ErrorFileAt here(path);
  base::write_error_file(std::runtime_error("Connection closed by peer"), 1);
  ASSERT_TRUE(base::read_error_file(path));
  EXPECT_EQ(base::read_error_file(path)->kind, std::nullopt);
  EXPECT_EQ(base::read_error_file(path)->rank, std::nullopt);
}

TEST(ErrorFile, OfAnotherProgramOrVersionHasNoKind) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/error.json";
  const ErrorFileAt here(path);
  for (const char* text :
       {R"({"message": {"message": "m", "extraInfo": {"py_callstack": "c"}}})",
        R"({"message": {"message": "m", "extraInfo": {"kind": "later", "rank": "x"}}})",
        R"({"message": "m"})"}) {
    std::ofstream(path) << text;
    ASSERT_TRUE(base::read_error_file(path));
    EXPECT_EQ(base::read_error_file(path)->message, "m");
    EXPECT_EQ(base::read_error_file(path)->kind, std::nullopt);
    EXPECT_EQ(base::read_error_file(path)->rank, std::nullopt);
  }
}

}  // namespace
}  // namespace brigade::testing
