// What goes wrong on a device comes out of backward(), on every rank, in time.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <thread>

#include "cuda/on_gpu.h"

namespace brigade {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using testing::bag_on_gpu;
using testing::BagDdp;
using ::testing::HasSubstr;
using testing::kGpu;
using testing::Shapes;

const Shapes kShapes{{300, 641}, {400, 641}, {500, 641}};
constexpr seconds kLimit{4};

struct Failure {
  std::string text;
  seconds after;
};

// Trains until it fails, waiting for the device in every step as a program does that prints
// its loss.
Failure train_until_failure(BagDdp& ddp, const std::function<void(int step)>& before_step) {
  const auto inputs = testing::coefficients_on_gpu(kShapes, 0, 0);
  const auto began = std::chrono::steady_clock::now();
  try {
    for (int step = 0; step < 1000; ++step) {
      before_step(step);
      ddp->zero_grad();
      ddp->forward(inputs).backward();
      ddp->module()->parameters_in_order[0].grad().sum().item<float>();
    }
  } catch (const HookError& error) {
    return {error.what(),
            std::chrono::duration_cast<seconds>(std::chrono::steady_clock::now() - began)};
  }
  return {"no failure", seconds(0)};
}

// The ranks meet over Gloo, and train over NCCL, which a failure breaks.
void run_to_failure(const std::function<void(ProcessGroup over_nccl)>& body) {
  if (!std::filesystem::exists("/dev/nvidiactl"))
    GTEST_SKIP() << "no NVIDIA GPU on this machine";
  testing::run_ranks(2,
                     [&](ProcessGroup hosts) {
                       testing::load_cuda(hosts.rank());
                       ProcessGroupOptions options;
                       options.backend = "nccl";
                       options.timeout = kLimit;
                       body(init_process_group(options));
                       hosts.barrier();
                     },
                     {.timeout = seconds(60), .wall = seconds(100)});
}

class CudaFailures : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Hooks, CudaFailures,
                         ::testing::Values("allreduce", "int8", "powersgd:start=1"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, 4);
                         });

TEST_P(CudaFailures, ARankThatStaysAwayIsNamedWithinTheLimit) {
  run_to_failure([](ProcessGroup group) {
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    ddp->set_hook(make_hook(GetParam()));
    const Failure failure = train_until_failure(ddp, [&](int step) {
      if (step == 5 && group.rank() == 1) std::this_thread::sleep_for(kLimit + seconds(4));
    });
    EXPECT_THAT(failure.text,
                AllOf(HasSubstr("rank 0: hook '"), HasSubstr("step "),
                      HasSubstr("time limit of 4000 ms"), HasSubstr("rank 1")));
    EXPECT_LE(failure.after, 2 * kLimit + seconds(8));
    // Nothing is left that would hold up the device.
    EXPECT_EQ(at::ones({5}, kGpu).sum().item<float>(), 5);
    EXPECT_THROW(ddp->forward(testing::coefficients_on_gpu(kShapes, 0, 0)), HookError);
  });
}

TEST_P(CudaFailures, AHookThatThrowsOnOneRankFailsOnAll) {
  run_to_failure([](ProcessGroup group) {
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    const auto inner = make_hook(GetParam());
    int steps = 0;
    ddp->set_hook(make_hook("stumbles", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      if (group.rank() == 1 && bucket.index() == 1 && ++steps == 4)
        throw std::runtime_error("out of luck");
      co_return co_await inner->reduce(std::move(bucket), comm);
    }));
    const Failure failure = train_until_failure(ddp, [](int) {});
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 1: hook 'stumbles', bucket 1"),
                                    HasSubstr("out of luck")));
    EXPECT_LE(failure.after, kLimit);
  });
}

TEST(CudaMemory, ABucketThatFindsNoMemoryFailsOnAll) {
  run_to_failure([](ProcessGroup group) {
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    ddp->set_hook(make_hook("hungry", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      if (group.rank() == 0) at::empty({int64_t{1} << 50}, kGpu);
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    }));
    EXPECT_THAT(train_until_failure(ddp, [](int) {}).text,
                AllOf(HasSubstr("rank 0: hook 'hungry', bucket 0, step 0"),
                      HasSubstr("CUDA out of memory")));
  });
}

}  // namespace
}  // namespace brigade
