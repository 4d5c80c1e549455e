// The command's reports of a driver that is missing, broken or too old, and of ranks that
// share a GPU, with a driver that only answers questions (stub_driver.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/common/program.h"

namespace brigade::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kStubs =
    std::filesystem::path(built_program("brigade")).parent_path().parent_path() /
    "stubs/driver";

using Environment = std::map<std::string, std::string>;
Environment with_driver(Environment more) {
  more["LD_LIBRARY_PATH"] = kStubs;
  more["CUDA_VISIBLE_DEVICES"];  // not set
  return more;
}

// Returns why there is no CUDA, and why no NCCL.
std::pair<std::string, std::string> reasons(const Environment& environment) {
  const Program info({"info"}, with_driver(environment));
  EXPECT_EQ(info.exit_code, 0) << info.err;
  const nlohmann::json found = info.json();
  return {found["cuda"].value("reason", ""), found["backends"]["nccl"].value("reason", "")};
}

TEST(Driver, ThatDoesNotStartSaysWhyInItsOwnWords) {
  const auto [cuda, nccl] = reasons({{"STUB_CUINIT", "999"}});
  EXPECT_EQ(cuda, "the NVIDIA driver does not start: what the driver says (error 999)");
}

TEST(Driver, ThatFindsNoGpuNamesTheVariableThatMayHideIt) {
  EXPECT_EQ(reasons({{"STUB_CUINIT", "100"}}).first, "the NVIDIA driver finds no GPU");
  const Program hidden(
      {"info"},
      {{"LD_LIBRARY_PATH", kStubs}, {"STUB_CUINIT", "100"}, {"CUDA_VISIBLE_DEVICES", "7"}});
  EXPECT_EQ(hidden.json()["cuda"]["reason"],
            "the NVIDIA driver finds no GPU; CUDA_VISIBLE_DEVICES is '7'");
}

TEST(Driver, WhoseServiceHasEndedOrThatWasUpdatedSaysWhatToDo) {
  for (const char* error : {"805", "807"}) {
    EXPECT_THAT(reasons({{"STUB_CUINIT", error}}).first,
                AllOf(HasSubstr(error), HasSubstr("nvidia-cuda-mps-control -d")));
  }
  EXPECT_THAT(reasons({{"STUB_CUINIT", "803"}}).first,
              HasSubstr("libcuda.so.1 and the kernel's driver are of different versions"));
}

// Needs a LibTorch with a CUDA part, which knows the CUDA that it was built for.
TEST(Driver, ThatIsOlderThanLibTorchsCudaIsNamedWithBothVersions) {
  const auto [cuda, nccl] = reasons({{"STUB_VERSION", "12040"}});
  if (cuda.find("libtorch_cuda.so") != std::string::npos)
    GTEST_SKIP() << "this LibTorch has no CUDA part: " << cuda;
  EXPECT_THAT(cuda, AllOf(HasSubstr("driver is for CUDA 12.4 at most"),
                          HasSubstr("LibTorch is built for 13.")));
  if (nccl.find("its module") == std::string::npos) {
    EXPECT_EQ(nccl, cuda);
  }
}

TEST(Driver, WithoutOneBothSaySo) {
  if (std::filesystem::exists("/dev/nvidiactl")) GTEST_SKIP() << "there is one here";
  const Program info({"info"});
  const nlohmann::json found = info.json();
  const std::string reason = "there is no NVIDIA driver here (libcuda.so.1)";
  EXPECT_EQ(found["cuda"]["reason"], reason);
  const std::string nccl = found["backends"]["nccl"]["reason"];
  EXPECT_TRUE(nccl == reason || nccl.starts_with("its module")) << nccl;
}

TEST(SharedGpus, AreSaidAndTheirTimesWarnedOfUnlessTheServiceRuns) {
  const TemporaryFolder service;
  const std::vector<std::string> bench{"bench", "--device", "cuda", "--sizes",
                                       "1M",    "--hooks",  "fp16"};
  const auto said = [&](const Environment& environment) {
    return Program(bench, with_driver(environment)).err;
  };
  const std::string shared = "2 ranks share 1 GPU: NCCL takes each for a host of its own";
  const std::string slices = "times are those of time slices";
  EXPECT_THAT(
      said({{"CUDA_MPS_PIPE_DIRECTORY", service.path()}}),
      AllOf(HasSubstr(shared), HasSubstr(slices), HasSubstr("nvidia-cuda-mps-control -d")));
  std::ofstream(service.path() + "/control");
  EXPECT_THAT(said({{"CUDA_MPS_PIPE_DIRECTORY", service.path()}}),
              AllOf(HasSubstr(shared), Not(HasSubstr(slices))));
  EXPECT_THAT(said({{"STUB_DEVICES", "2"}}),
              AllOf(Not(HasSubstr(shared)), Not(HasSubstr(slices))));
}

}  // namespace
}  // namespace brigade::testing
