// What a worker tells its launcher through a file.
#include "base/files/error_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace brigade::testing {
namespace {

// Where workers write while it lives.
class ErrorFile {
 public:
  ErrorFile() { setenv("TORCHELASTIC_ERROR_FILE", path().c_str(), 1); }
  ~ErrorFile() { unsetenv("TORCHELASTIC_ERROR_FILE"); }
  std::string path() const { return folder_.path() + "/error.json"; }
  std::optional<base::RecordedError> read() const { return base::read_error_file(path()); }

 private:
  TemporaryFolder folder_;
};

TEST(ErrorFile, HasKindAndRankOfTheErrorBesideTorchrunsOwnFields) {
  const ErrorFile file;
  base::write_error_file(HookError("rank 2 is gone", Failure::peer_lost, 2), 1);
  const auto error = file.read();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "brigade::HookError: rank 2 is gone");
  EXPECT_EQ(error->kind, Failure::peer_lost);
  EXPECT_EQ(error->rank, 2);
  EXPECT_EQ(error->exit_code, 1);
  std::ifstream in(file.path());
  const auto data = nlohmann::json::parse(in);
  const auto& extra = data.at("message").at("extraInfo");
  EXPECT_EQ(extra.at("kind"), "peer_lost");
  EXPECT_EQ(extra.at("rank"), 2);
  EXPECT_TRUE(extra.at("timestamp").is_string()) << "torchrun reads it";
  EXPECT_EQ(extra.at("py_callstack"), error->message);
}

TEST(ErrorFile, KeepsTheExitCodeBesideTheKind) {
  const ErrorFile file;
  base::write_error_file(ConfigError("no such option"), 2);
  ASSERT_TRUE(file.read());
  EXPECT_EQ(file.read()->kind, Failure::config);
  EXPECT_EQ(file.read()->rank, std::nullopt);
  EXPECT_EQ(file.read()->exit_code, 2);
}

// The launcher then has nothing but the text to go by.
TEST(ErrorFile, SaysNoKindOfAnErrorThatIsNotOurs) {
  const ErrorFile file;
  base::write_error_file(std::runtime_error("Connection closed by peer"), 1);
  ASSERT_TRUE(file.read());
  EXPECT_EQ(file.read()->kind, std::nullopt);
  EXPECT_EQ(file.read()->rank, std::nullopt);
}

TEST(ErrorFile, OfAnotherProgramOrVersionHasNoKind) {
  const ErrorFile file;
  for (const char* text :
       {R"({"message": {"message": "m", "extraInfo": {"py_callstack": "c"}}})",
        R"({"message": {"message": "m", "extraInfo": {"kind": "later", "rank": "x"}}})",
        R"({"message": "m"})"}) {
    std::ofstream(file.path()) << text;
    ASSERT_TRUE(file.read());
    EXPECT_EQ(file.read()->message, "m");
    EXPECT_EQ(file.read()->kind, std::nullopt);
    EXPECT_EQ(file.read()->rank, std::nullopt);
  }
}

}  // namespace
}  // namespace brigade::testing
