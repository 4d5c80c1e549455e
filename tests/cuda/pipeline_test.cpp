// Lanes that overlap on the device: many buckets, delays, streams of the program.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <random>
#include <thread>

#include "cuda/on_gpu.h"

namespace brigade {
namespace {

using testing::bag_on_gpu;
using testing::BagDdp;
using testing::kGpu;
using testing::run_cuda_ranks;
using testing::Shapes;

// The gradients of one rank in one step; every rank can make those of all.
std::vector<at::Tensor> gradients_of(const Shapes& shapes, int rank, int64_t step) {
  at::manual_seed(static_cast<uint64_t>(1 + rank + 100 * step));
  std::vector<at::Tensor> list;
  for (const auto& shape : shapes) list.push_back(at::randn(shape, kGpu));
  return list;
}

// Keeps the current stream busy for a while.
void delay_stream(int products) {
  at::Tensor square = at::full({1024, 1024}, 1e-3, kGpu);
  for (int count = 0; count < products; ++count) square = square.mm(square);
}

at::Tensor train_step(BagDdp& ddp, const std::vector<at::Tensor>& inputs) {
  ddp->zero_grad();
  ddp->forward(inputs).backward();
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : ddp->module()->parameters_in_order)
    flat.push_back(parameter.grad().flatten());
  return at::cat(flat);
}

// The error of the results, against the exact mean, in units of a rank's gradients.
double error_of(const at::Tensor& got, const Shapes& shapes, int ranks, int64_t step) {
  at::Tensor sum = at::zeros(got.sizes(), got.options().dtype(at::kDouble));
  double size = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& each : gradients_of(shapes, rank, step))
      flat.push_back(each.flatten());
    const at::Tensor values = at::cat(flat).to(at::kDouble);
    size += values.pow(2).sum().item<double>() / ranks;
    sum += values;
  }
  return std::sqrt((got.to(at::kDouble) - sum / ranks).pow(2).sum().item<double>() / size);
}

bool same_on_all(const ProcessGroup& group, const at::Tensor& mine) {
  at::Tensor theirs = mine.clone();
  group.broadcast(theirs, 0);
  return at::equal(theirs, mine);
}

struct Bound {
  const char* spec;
  double error;
};
const Bound kHooks[] = {{"int8", 0.02}, {"int4", 0.3},       {"quantize_per_channel", 0.03},
                        {"fp16", 2e-3}, {"allreduce", 1e-6}, {"node+allreduce", 1e-6}};

class CudaPipeline : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaPipeline, ::testing::Values(2, 4));

// Takes BRIGADE_CUDA_STEPS steps for each hook and number of buckets.
TEST_P(CudaPipeline, DelaysChangeNothing) {
  const auto body = [](ProcessGroup group) {
    std::mt19937 random(static_cast<uint32_t>(group.rank()));
    const auto draw = [&](int most) { return static_cast<int>(random() % (most + 1)); };
    for (const Bound& hook : kHooks) {
      for (const int64_t buckets : {1, 2, 5, 31}) {
        SCOPED_TRACE(std::string(hook.spec) + " with " + std::to_string(buckets) +
                     " buckets");
        Shapes shapes;
        for (int64_t index = 0; index < buckets; ++index)
          shapes.push_back({33 + 7 * index, 641});
        BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group,
                   {.bucket_cap_mb = testing::kOneBucketEach});
        ddp->set_hook(make_hook(hook.spec));
        for (int64_t step = 0; step < testing::steps_of_a_test(); ++step) {
          const auto inputs = gradients_of(shapes, group.rank(), step);
          std::this_thread::sleep_for(std::chrono::microseconds(draw(1500)));
          delay_stream(draw(20));
          const at::Tensor got = train_step(ddp, inputs);
          ASSERT_TRUE(same_on_all(group, got)) << "step " << step;
          ASSERT_LE(error_of(got, shapes, group.size(), step), hook.error)
              << "step " << step;
        }
      }
    }
  };
  run_cuda_ranks("nccl", body, GetParam());
}

// The bucket is large enough to be sent in segments, each in its own lane.
TEST(CudaStreams, SegmentsOfALargeBucketOverlap) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    const Shapes shapes{{5000, 2001}, {1001, 2000}, {3000, 3001}, {77}};
    for (const Bound& hook : kHooks) {
      SCOPED_TRACE(hook.spec);
      BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group, {.bucket_cap_mb = 48});
      ddp->set_hook(make_hook(hook.spec));
      for (int64_t step = 0; step < 6; ++step) {
        const at::Tensor got = train_step(ddp, gradients_of(shapes, group.rank(), step));
        EXPECT_TRUE(same_on_all(group, got)) << "step " << step;
        EXPECT_LE(error_of(got, shapes, group.size(), step), hook.error);
      }
    }
  });
}

// A program may prepare its next batch, or train another model, meanwhile.
TEST(CudaStreams, ProductsBesideAReductionChangeNothing) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    const Shapes shapes{{3000, 2001}, {77}, {500, 641}};
    const at::Tensor a = at::randn({2048, 2048}, kGpu), expected = a.mm(a);
    for (const Bound& hook : kHooks) {
      SCOPED_TRACE(hook.spec);
      BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group, {.bucket_cap_mb = 4});
      ddp->set_hook(make_hook(hook.spec));
      c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
      const c10::Stream beside = cuda.getStreamFromGlobalPool(kGpu, false);
      for (int64_t step = 0; step < 6; ++step) {
        std::vector<at::Tensor> products;
        const auto multiply = [&] {
          c10::StreamGuard on(beside);
          for (int i = 0; i < 20; ++i) products.push_back(a.mm(a));
        };
        const auto inputs = gradients_of(shapes, group.rank(), step);
        cuda.synchronizeDevice(kGpu.index());
        multiply();
        const at::Tensor got = train_step(ddp, inputs);
        multiply();
        EXPECT_TRUE(same_on_all(group, got)) << "step " << step;
        EXPECT_LE(error_of(got, shapes, group.size(), step), hook.error);
        cuda.synchronizeDevice(kGpu.index());
        for (const at::Tensor& product : products)
          EXPECT_TRUE(at::equal(product, expected));
      }
    }
  });
}

TEST(CudaStreams, RanksOfAHostAddUpBeforeTheySend) {
  const auto body = [](ProcessGroup group) {
    const Shapes shapes{{300, 641}, {3000, 2001}, {77}, {500, 641}};
    for (const Bound& hook : kHooks) {
      SCOPED_TRACE(hook.spec);
      BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group, {.bucket_cap_mb = 4});
      ddp->set_hook(make_hook(hook.spec));
      for (int64_t step = 0; step < 8; ++step) {
        const at::Tensor got = train_step(ddp, gradients_of(shapes, group.rank(), step));
        EXPECT_TRUE(same_on_all(group, got)) << "step " << step;
        EXPECT_LE(error_of(got, shapes, group.size(), step), hook.error);
      }
      if (std::string(hook.spec) == "int8") {
        EXPECT_EQ(ddp->hook_stats().shape, "2 hosts x 2 ranks");
      }
    }
  };
  run_cuda_ranks("nccl", body, /*ranks=*/4, /*a_host=*/2);
}

TEST(CudaStreams, TheProgramMayHaveAStreamOfItsOwn) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    const Shapes shapes{{300, 641}, {400, 641}, {500, 641}};
    BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group,
               {.bucket_cap_mb = testing::kOneBucketEach});
    ddp->set_hook(make_hook("int8"));
    const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
    for (int64_t step = 0; step < 20; ++step) {
      const c10::StreamGuard own(device.getStreamFromGlobalPool(kGpu, false));
      const auto inputs = gradients_of(shapes, group.rank(), step);
      delay_stream(10);
      const at::Tensor got = train_step(ddp, inputs);
      EXPECT_TRUE(same_on_all(group, got)) << "step " << step;
      EXPECT_LE(error_of(got, shapes, group.size(), step), 0.02);
    }
  });
}

// The work that a hook leaves on its stream is done before gradients are read. What two
// buckets do in the same stage is in order, on the device too.
TEST(CudaStreams, StretchesOfAHookAreInOrderAndAwaited) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    const Shapes shapes{{64, 64}, {64, 64}, {64, 64}, {64, 64}, {64, 64}, {64, 64}};
    BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group,
               {.bucket_cap_mb = testing::kOneBucketEach});
    at::Tensor counter = at::zeros({1}, kGpu);
    const auto slow = [&](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      at::Tensor sum = bucket.buffer();
      co_await comm.all_reduce(sum);
      delay_stream(bucket.index() % 2 == 0 ? 30 : 0);
      const at::Tensor before = counter.clone();
      delay_stream(3);
      counter.copy_(before + 1);  // lost, if two buckets were here at once
      sum.div_(comm.size());
      co_return sum;
    };
    train_step(ddp,
               gradients_of(shapes, group.rank(), 0));  // buckets are rebuilt after this
    ddp->set_hook(make_hook("slow", slow));
    const int64_t steps = 20;
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor got = train_step(ddp, gradients_of(shapes, group.rank(), step));
      EXPECT_LE(error_of(got, shapes, group.size(), step), 1e-6) << "step " << step;
    }
    EXPECT_EQ(counter.item<float>(), static_cast<float>(steps * 6));
  });
}

// Makes fp16 and bf16 from ATen's operations.
std::shared_ptr<Hook> halves_by_aten(at::ScalarType dtype) {
  return make_hook("by ATen", [dtype](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor half = bucket.buffer().div(comm.size()).to(dtype);
    co_await comm.all_reduce(half);
    bucket.buffer().copy_(half);
    co_return bucket.buffer();
  });
}

TEST(CudaStreams, HalvesAreThoseOfDividingAndRounding) {
  run_cuda_ranks(
      "nccl",
      [](ProcessGroup group) {
        const Shapes shapes{{300, 641}, {77}, {1}, {1000, 1001}};
        for (const auto& [spec, dtype] :
             {std::pair{"fp16", at::kHalf}, std::pair{"bf16", at::kBFloat16}}) {
          SCOPED_TRACE(spec);
          BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group,
                     {.bucket_cap_mb = testing::kOneBucketEach});
          // Buckets are rebuilt after this; a sum's order depends on a bucket's size.
          train_step(ddp, gradients_of(shapes, group.rank(), 0));
          for (int64_t step = 0; step < 4; ++step) {
            auto inputs = gradients_of(shapes, group.rank(), step);
            for (at::Tensor& each : inputs) each.mul_(step == 3 ? 1e-5 : 100);
            ddp->set_hook(halves_by_aten(dtype));
            const at::Tensor expected = train_step(ddp, inputs);
            ddp->set_hook(make_hook(spec));
            EXPECT_TRUE(at::equal(train_step(ddp, inputs), expected)) << "step " << step;
          }
        }
      },
      /*ranks=*/3);
}

c10::Event long_work(int products) {
  const at::Tensor square = at::full({8192, 8192}, 1e-4, kGpu);
  at::Tensor product = at::empty_like(square);
  for (int count = 0; count < products; ++count) at::mm_out(product, square, square);
  c10::Event end(c10::DeviceType::CUDA);
  end.record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(kGpu));
  return end;
}

using Seconds = std::chrono::duration<double>;

Seconds time_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::steady_clock::now() - begin;
}

// The number that takes the device so long, within limits.
int products_for(Seconds least) {
  long_work(1).synchronize();  // set-up of the first is not timed
  int products = 16;
  while (products < 512 && time_of([&] { long_work(products).synchronize(); }) < least)
    products *= 2;
  return products;
}

// Values for which the host would wait do not exist before earlier work is done.
TEST(CudaStreams, TheHostDoesNotWait) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    const Shapes shapes{{300, 641}, {77}, {500, 641}};
    for (const char* spec :
         {"allreduce", "fp16", "bf16", "int8", "int4", "quantize_per_tensor",
          "quantize_per_channel", "powersgd:rank=2,start=0",
          "powersgd:rank=2,start=0,warm=0", "powersgd:rank=2,start=0,rounds=1",
          "batched_powersgd:rank=2,start=0", "randomk", "topk"}) {
      SCOPED_TRACE(spec);
      BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group,
                 {.bucket_cap_mb = testing::kOneBucketEach});
      ddp->set_hook(make_hook(spec));
      for (int64_t step = 0; step < 4; ++step)
        train_step(ddp, gradients_of(shapes, group.rank(), step));
      const auto loss_of_step = [&](int64_t step) {
        const auto inputs = gradients_of(shapes, group.rank(), step);
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).synchronizeDevice(kGpu.index());
        ddp->zero_grad();
        return ddp->forward(inputs);
      };
      const at::Tensor idle = loss_of_step(4);
      const int products = products_for(10 * time_of([&] { idle.backward(); }));
      const at::Tensor loss = loss_of_step(5);
      const c10::Event before = long_work(products);
      loss.backward();
      EXPECT_FALSE(before.query()) << "backward() has waited for the device";
      before.synchronize();
    }
  });
}

TEST(CudaStreams, ATraceHasTheDevicesTimes) {
  run_cuda_ranks("nccl", [](ProcessGroup group) {
    const Shapes shapes{{64, 64}};
    BagDdp ddp(bag_on_gpu(shapes, at::kFloat), group);
    ddp->set_hook(make_hook("slow", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
      co_await comm.all_reduce(bucket.buffer());
      delay_stream(400);  // 1 ms at the least: 2 GFLOP each
      co_return bucket.buffer();
    }));
    train_step(ddp, gradients_of(shapes, group.rank(), 0));
    ddp->core().record_trace(true);
    train_step(ddp, gradients_of(shapes, group.rank(), 1));
    const std::vector<TraceEvent> events = ddp->core().take_trace();
    ASSERT_EQ(events.size(), 3);  // a stage, the collective, a stage
    for (const TraceEvent& event : events) EXPECT_LE(event.begin, event.end);
    const auto longest = std::ranges::max_element(
        events, {}, [](const TraceEvent& event) { return event.end - event.begin; });
    EXPECT_EQ(longest->kind, TraceEvent::Kind::compute);
    EXPECT_EQ(longest->station, 1);
    EXPECT_GT(longest->end - longest->begin, std::chrono::milliseconds(1));
  });
}

}  // namespace
}  // namespace brigade
