// A failure on a device comes out of backward(), on every rank, in time.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/exception_text.h"
#include "base/failure.h"
#include "cuda/on_gpu.h"
#include "group/process_group_state.h"

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

// Trains until it fails. Waits for the device in every step, as a program that prints its
// loss does.
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

// The ranks use Gloo for the test and train over NCCL, which a failure breaks. At the end
// they wait for each other, unless one is lost by then.
void run_to_failure(const std::function<void(ProcessGroup over_nccl)>& body,
                    bool all_come_to_the_end = true) {
  if (!std::filesystem::exists("/dev/nvidiactl"))
    GTEST_SKIP() << "no NVIDIA GPU on this machine";
  testing::run_ranks(2,
                     [&](ProcessGroup hosts) {
                       testing::load_cuda(hosts.rank());
                       ProcessGroupOptions options;
                       options.backend = "nccl";
                       options.timeout = kLimit;
                       body(init_process_group(options));
                       if (all_come_to_the_end) hosts.barrier();
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
    // No leftover work holds up the device.
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

// NCCL itself does not report a rank that is gone, and waits.
TEST_P(CudaFailures, ARankThatIsKilledIsNamedWithinTheLimit) {
  const auto body = [](ProcessGroup group) {
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    ddp->set_hook(make_hook(GetParam()));
    const Failure failure = train_until_failure(ddp, [&](int step) {
      if (step == 5 && group.rank() == 1) _exit(0);  // no notice, as if killed
    });
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 0: hook '"), HasSubstr("step ")));
    EXPECT_EQ(failure.text.find("frame #"), std::string::npos) << failure.text;
    EXPECT_LE(failure.after, kLimit + seconds(8));
    EXPECT_EQ(at::ones({5}, kGpu).sum().item<float>(), 5);
  };
  run_to_failure(body, /*all_come_to_the_end=*/false);
}

// Ends without notice, as if killed, but not in the middle of a kernel: under MPS that
// takes the memory of the others away, too.
void leave() {
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).synchronizeDevice(kGpu.index());
  _exit(0);
}
void oversleep() { std::this_thread::sleep_for(kLimit + seconds(4)); }

// The second station's communicator is made in the first step, by its first bucket.
void expect_failure_between_stations(void (*stop)(), bool all_come_to_the_end) {
  const auto body = [=](ProcessGroup group) {
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    ddp->set_hook(make_hook("two", [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      co_await comm.all_reduce(bucket.buffer());
      if (comm.rank() == 1) stop();
      co_await comm.all_reduce(bucket.buffer());
      co_return bucket.buffer();
    }));
    const Failure failure = train_until_failure(ddp, [](int) {});
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 0: hook 'two', bucket 0, step 0"),
                                    ::testing::Not(HasSubstr("frame #"))));
    if (all_come_to_the_end) {
      EXPECT_THAT(failure.text, HasSubstr("rank 1"));
    }
    EXPECT_LE(failure.after, (group.rank() == 1 ? 2 : 1) * kLimit + seconds(8));
  };
  run_to_failure(body, all_come_to_the_end);
}

TEST(CudaConnecting, ARankThatLeavesBetweenTwoStationsIsAnErrorWithinTheLimit) {
  expect_failure_between_stations(leave, /*all_come_to_the_end=*/false);
}

TEST(CudaConnecting, ARankThatSleepsBetweenTwoStationsIsNamedWithinTheLimit) {
  expect_failure_between_stations(oversleep, /*all_come_to_the_end=*/true);
}

void expect_phrase(const std::string& text, const std::string& phrase,
                   brigade::Failure kind) {
  EXPECT_EQ(base::phrase_in(text), phrase) << text;
  EXPECT_EQ(base::classify(text), kind) << text;
}

// The text that a collective of two ranks over NCCL throws.
std::string text_of_all_reduce(const ProcessGroup& group) {
  try {
    for (int step = 0; step < 100; ++step) {
      group.all_reduce(at::ones({1 << 16}, kGpu));
      c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).synchronizeDevice(kGpu.index());
    }
  } catch (const std::exception& error) {
    return base::text_of(error);
  }
  return "nothing was thrown";
}

// The other phrases of base/failure.cpp are in tests/engine/foreign_phrases_test.cpp.
TEST(CudaForeignPhrases, NcclSaysThatItsCommunicatorWasAborted) {
  run_to_failure([](ProcessGroup group) {
    group::abort_on_device({group.c10d()});
    expect_phrase(text_of_all_reduce(group), "communicator was aborted",
                  brigade::Failure::aborted);
  });
}

// Meanwhile the device waits for that rank, until the communicator is aborted.
TEST(CudaForeignPhrases, NcclSaysThatARankIsGone) {
  const auto body = [](ProcessGroup group) {
    if (group.rank() == 1) leave();
    std::this_thread::sleep_for(seconds(1));
    std::string text = "nothing was thrown";
    try {
      for (int step = 0; step < 20; ++step) {
        std::vector<at::Tensor> tensors{at::ones({1 << 20}, kGpu)};
        group.c10d()->allreduce(tensors);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    } catch (const std::exception& error) {
      text = base::text_of(error);
    }
    expect_phrase(text, "remote process exited", brigade::Failure::peer_lost);
    group::abort_on_device({group.c10d()});
  };
  run_to_failure(body, /*all_come_to_the_end=*/false);
}

// Stops its rank when it asks for the address of NCCL's other ranks.
class StoreThatStops : public c10d::PrefixStore {
 public:
  StoreThatStops(c10::intrusive_ptr<c10d::Store> store, void (*stop)())
      : PrefixStore("stops", std::move(store)), stop_(stop) {}
  std::vector<uint8_t> get(const std::string& key) override {
    if (stop_ && key.starts_with("nccl/")) stop_();
    return PrefixStore::get(key);
  }

 private:
  void (*const stop_)();
};

// NCCL itself waits for ever for a rank that joins and then does not connect.
void expect_failure_to_connect(void (*stop)(), bool all_come_to_the_end) {
  if (!std::filesystem::exists("/dev/nvidiactl"))
    GTEST_SKIP() << "no NVIDIA GPU on this machine";
  testing::run_ranks(
      2,
      [&](ProcessGroup hosts) {
        testing::load_cuda(hosts.rank());
        auto state = std::make_shared<ProcessGroup::State>();
        state->store = c10::make_intrusive<StoreThatStops>(
            hosts.store(), hosts.rank() == 1 ? stop : nullptr);
        state->backend = group::choose_backend("nccl");
        state->timeout = state->gloo.timeout = kLimit;
        state->rank = hosts.rank();
        state->size = hosts.size();
        state->world_ranks = {0, 1};
        const auto began = std::chrono::steady_clock::now();
        std::string text = "no failure";
        try {
          group::connect(state);
        } catch (const RendezvousError& error) {
          text = error.what();
        }
        EXPECT_THAT(text, HasSubstr("NCCL has not connected the ranks within"));
        EXPECT_LE(std::chrono::steady_clock::now() - began, kLimit + seconds(4));
        // The device is not held up.
        EXPECT_EQ(at::ones({5}, kGpu).sum().item<float>(), 5);
        if (all_come_to_the_end) hosts.barrier();
      },
      {.timeout = seconds(60), .wall = seconds(100)});
}

TEST(CudaConnecting, ARankThatLeavesWhileNcclConnectsIsAnErrorWithinTheLimit) {
  expect_failure_to_connect(leave, /*all_come_to_the_end=*/false);
}

TEST(CudaConnecting, ARankThatSleepsWhileNcclConnectsIsAnErrorWithinTheLimit) {
  expect_failure_to_connect(oversleep, /*all_come_to_the_end=*/true);
}

// Calls functions of the CUDA runtime, which came with LibTorch's CUDA part.
template <class Function>
Function runtime(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}
constexpr int kGlobal = 0, kRelaxed = 2;  // cudaStreamCaptureMode

// While it lives, the current stream is a fresh one, which can be recorded as a CUDA graph.
class Recording {
 public:
  Recording() : stream_(cuda_.getStreamFromGlobalPool(kGpu, false)) {}
  void begin(int mode) const {
    const auto begin = runtime<int (*)(void*, int)>("cudaStreamBeginCapture");
    EXPECT_EQ(begin(handle(), mode), 0);
  }
  // Returns the runtime's error, or 0 if the graph is complete.
  int end() const {
    void* graph = nullptr;
    const int error =
        runtime<int (*)(void*, void**)>("cudaStreamEndCapture")(handle(), &graph);
    if (graph) runtime<int (*)(void*)>("cudaGraphDestroy")(graph);
    return error;
  }

 private:
  void* handle() const { return cuda_.getStreamNativeHandle(stream_.current_stream()); }
  const c10::impl::VirtualGuardImpl cuda_{c10::DeviceType::CUDA};
  c10::StreamGuard stream_;
};

// The text that `body` throws while it is recorded.
std::string refusal_of(const Recording& recording, const std::function<void()>& body) {
  recording.begin(kRelaxed);
  std::string refusal;
  try {
    body();
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  recording.end();
  EXPECT_EQ(refusal.find("frame #"), std::string::npos) << refusal;
  return refusal;
}

TEST(CudaGraphs, APassThatIsRecordedIsRefused) {
  run_to_failure([](ProcessGroup group) {
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    ddp->set_hook(make_hook("int8"));
    const auto inputs = testing::coefficients_on_gpu(kShapes, group.rank(), 0);
    const Recording recording;
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp->forward(inputs).backward();
    }
    const std::string refusal =
        refusal_of(recording, [&] { ddp->forward(inputs).backward(); });
    EXPECT_THAT(refusal,
                AllOf(HasSubstr("recorded as a CUDA graph"),
                      HasSubstr("keep forward() and backward() out of the graph")));
    // The model still works.
    ddp->zero_grad();
    ddp->forward(inputs).backward();
    EXPECT_TRUE(ddp->module()->parameters_in_order[0].grad().defined());
  });
}

// The model is wrapped on the recorded stream, so that the pass reaches the hook.
TEST(CudaGraphs, ABackwardPassThatIsRecordedAloneIsRefusedByTheHook) {
  run_to_failure([](ProcessGroup group) {
    const Recording recording;
    BagDdp ddp(bag_on_gpu(kShapes, at::kFloat), group, {.bucket_cap_mb = 1});
    ddp->set_hook(make_hook("int8"));
    const auto inputs = testing::coefficients_on_gpu(kShapes, group.rank(), 0);
    for (int step = 0; step < 3; ++step) {
      ddp->zero_grad();
      ddp->forward(inputs).backward();
    }
    ddp->zero_grad();
    const at::Tensor loss = ddp->forward(inputs);
    const at::Tensor seed = at::ones_like(loss);
    const std::string refusal = refusal_of(recording, [&] { loss.backward(seed); });
    EXPECT_THAT(refusal, AllOf(HasSubstr("hook 'int8'"),
                               HasSubstr("keep backward() out of the graph")));
  });
}

// Meanwhile the engine's thread for time limits queries events of another stream.
TEST(CudaGraphs, ARecordingBesideAReductionIsNotDisturbed) {
  run_to_failure([](ProcessGroup group) {
    const Shapes shapes{{64, 64}};
    BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group);
    ddp->set_hook(make_hook("slow", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      co_await comm.all_reduce(bucket.buffer());
      at::Tensor square = at::full({1024, 1024}, 1e-3, kGpu);
      for (int count = 0; count < 30'000; ++count) square = square.mm(square);  // a second
      co_return bucket.buffer();
    }));
    ddp->forward(testing::coefficients_on_gpu(shapes, group.rank(), 0)).backward();
    const Recording recording;
    recording.begin(kGlobal);
    std::this_thread::sleep_for(seconds(1));
    EXPECT_EQ(recording.end(), 0) << "the recording was broken";
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
