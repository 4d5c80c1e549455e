#include "base/exception_text.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "brigade/error.h"

namespace brigade::testing {
namespace {

std::exception_ptr torch_error() {
  try {
    TORCH_CHECK(false, "sizes differ");
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

template <class Say>
std::string said_of(const std::exception_ptr& error, Say say) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return say(exception);
  }
}

TEST(ExceptionText, HasNoStackTrace) {
  const auto error = torch_error();
  // Otherwise the test would have nothing to check.
  ASSERT_NE(said_of(error, [](auto& e) { return std::string(e.what()); }).find("frame #0"),
            std::string::npos);
  EXPECT_EQ(base::text_of(error), "sizes differ");
  EXPECT_EQ(said_of(error, [](auto& e) { return base::text_of(e); }), "sizes differ");
  EXPECT_EQ(said_of(error, [](auto& e) { return base::cause_of(e); }), "sizes differ");
  EXPECT_EQ(said_of(error, [](auto& e) { return base::describe(e); }),
            "c10::Error: sizes differ");
}

TEST(ExceptionText, OfWhatIsNoExceptionSaysSo) {
  EXPECT_EQ(base::text_of(std::make_exception_ptr(7)), "an exception of unknown type");
}

TEST(ExceptionText, ACauseIsOneLineWithoutAPlaceInSources) {
  EXPECT_EQ(
      base::cause_of(std::runtime_error("[/src/gloo/pair.cc:144] reset by peer\nmore")),
      "reset by peer");
  EXPECT_EQ(base::cause_of(std::runtime_error("[a] b")), "[a] b");
}

TEST(ExceptionText, AReportNamesTheTypeOfForeignErrorsOnly) {
  EXPECT_EQ(base::report_of(ConfigError("no such hook")), "no such hook");
  EXPECT_EQ(base::report_of(std::out_of_range("at")), "std::out_of_range: at");
}

// LibTorch 2.11 builds the text like this.
TEST(ExceptionText, TheCauseOfNcclsErrorsIsWhatItSaysLast) {
  const std::string first =
      "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage "
      "(run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
      "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
      "Last error:\n";
  const std::string kind =
      "NCCL: invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9";
  const auto cause = [](const std::string& text) {
    return base::cause_of(std::runtime_error(text));
  };
  EXPECT_EQ(
      cause(first + "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device "
                    "1b000\nException raised from create"),
      kind + ": Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000");
  EXPECT_EQ(cause(first), kind);
  EXPECT_EQ(cause("NCCL error in: nowhere"), "NCCL error in: nowhere");
}

}  // namespace
}  // namespace brigade::testing
