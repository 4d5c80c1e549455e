// The CUDA kernels give the CPU's bytes.
#include "codec/codec.h"

#include <ATen/ATen.h>

#include "codec/cuda_module.h"
#include "cuda/on_gpu.h"
#include "kernels/patterns.h"

namespace brigade {
namespace {

using testing::kGpu;
using testing::Pattern;

using MakeCodec = std::unique_ptr<Codec> (*)(CodecPath);
const MakeCodec kCodecs[] = {make_fp16_codec,         make_bf16_codec,
                             make_int8_codec,         make_int4_codec,
                             make_affine_block_codec, make_affine_tensor_codec};

// Copies to the device, to an address `offset` floats behind a multiple of 16.
at::Tensor on_gpu(const at::Tensor& values, int64_t offset) {
  at::Tensor room = at::empty({values.numel() + offset}, values.options().device(kGpu));
  room = room.narrow(0, offset, values.numel());
  return room.copy_(values);
}

bool same_bits(const at::Tensor& gpu, const at::Tensor& cpu) {
  const at::Tensor here = gpu.cpu();
  if (here.scalar_type() == at::kByte) return at::equal(here, cpu);
  const auto either_nan = here.isnan().logical_and(cpu.isnan());
  return here.view(at::kInt)
      .eq(cpu.view(at::kInt))
      .logical_or(either_nan)
      .all()
      .item<bool>();
}

// A sum may keep either of two NaNs, and the plain casts pass it on.
bool same_message(const Codec& codec, const at::Tensor& gpu, const at::Tensor& cpu) {
  if (codec.takes_residual()) return at::equal(gpu.cpu(), cpu);
  const auto dtype = codec.name() == "fp16" ? at::kHalf : at::kBFloat16;
  const at::Tensor here = gpu.cpu().view(dtype), there = cpu.view(dtype);
  return here.isnan()
      .logical_and(there.isnan())
      .logical_or(here.view(at::kShort).eq(there.view(at::kShort)))
      .all()
      .item<bool>();
}

int64_t chunk_for(const Codec& codec, int64_t size) {
  return (size + codec.block() - 1) / codec.block() * codec.block();
}

// Checks the sum of a chunk's owner, who got `wire` from each of the others.
void expect_the_cpus_reduction(const Codec& codec, const at::Tensor& values, int64_t chunk,
                               int64_t offset, int ranks, const at::Tensor& wire,
                               const at::Tensor& lost, const at::Tensor& gpu_lost) {
  const at::Tensor messages = at::cat(std::vector<at::Tensor>(ranks - 1, wire));
  const at::Tensor mean = at::full_like(wire, 0xaa);
  const at::Tensor gpu_mean = at::full_like(wire, 1).to(kGpu);
  codec.reduce(values.clone(), messages, chunk, ranks, lost, mean);
  codec.reduce(on_gpu(values, offset), messages.to(kGpu), chunk, ranks, gpu_lost, gpu_mean);
  ASSERT_TRUE(same_message(codec, gpu_mean, mean));
  const at::Tensor out = at::empty_like(values), gpu_out = at::empty_like(values);
  codec.decode(mean, chunk, out);
  codec.decode(gpu_mean.cpu(), chunk, gpu_out);
  ASSERT_TRUE(same_bits(gpu_out, out));
  if (lost.defined()) {
    ASSERT_TRUE(same_bits(gpu_lost, lost));
  }
}

void expect_the_cpus_bytes(const Codec& codec, const at::Tensor& values, int64_t chunk,
                           int64_t offset, const at::Tensor& residual) {
  const int64_t bytes = codec.wire_bytes(chunk);
  const at::Tensor wire = at::full({bytes}, 0xaa, at::kByte);
  const at::Tensor gpu_wire = at::full({bytes}, 0x55, at::kByte).to(kGpu);
  const at::Tensor lost = residual.defined() ? residual.clone() : residual;
  const at::Tensor gpu_lost = residual.defined() ? on_gpu(residual, offset) : residual;
  const at::Tensor x = on_gpu(values, offset);
  codec.encode(values, chunk, 1.0 / 3, lost, wire);
  codec.encode(x, chunk, 1.0 / 3, gpu_lost, gpu_wire);
  ASSERT_TRUE(same_bits(gpu_wire, wire))
      << (gpu_wire.cpu() != wire).nonzero().view({-1}).slice(0, 0, 9);
  if (residual.defined()) {
    ASSERT_TRUE(same_bits(gpu_lost, lost));
  }
  const at::Tensor out = at::empty_like(values), gpu_out = on_gpu(values, offset);
  codec.decode(wire, chunk, out);
  codec.decode(gpu_wire, chunk, gpu_out);
  ASSERT_TRUE(same_bits(gpu_out, out));
  out.copy_(values);
  codec.decode_add(wire, chunk, out);
  codec.decode_add(gpu_wire, chunk, x);
  ASSERT_TRUE(same_bits(x, out));

  const bool large = values.numel() > 10'000;
  for (const int ranks : large ? std::vector{3} : std::vector{2, 3, 4, 6}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    ASSERT_NO_FATAL_FAILURE(expect_the_cpus_reduction(codec, values, chunk, offset, ranks,
                                                      wire, lost, gpu_lost));
  }
}

void compare_everything() {
  for (const MakeCodec make : kCodecs) {
    const auto codec = make(CodecPath::by_device);
    for (const Pattern& pattern : testing::patterns()) {
      for (const int64_t size :
           {0, 1, 3, 17, 127, 255, 256, 257, 511, 512, 513, 1300, 4097, 100'003}) {
        const at::Tensor values = at::tensor(testing::make(pattern, size), at::kFloat);
        for (const int64_t offset : {0, 1}) {
          for (const bool feedback : {false, true}) {
            if (feedback && !codec->takes_residual()) continue;
            SCOPED_TRACE(std::string(codec->name()) + ", " + pattern.name + ", " +
                         std::to_string(size) + " at " + std::to_string(offset) +
                         (feedback ? ", residual" : ""));
            at::Tensor residual;
            if (feedback)
              residual = at::tensor(testing::make(pattern, size, 5), at::kFloat).mul_(0.25);
            ASSERT_NO_FATAL_FAILURE(expect_the_cpus_bytes(
                *codec, values, chunk_for(*codec, size) + offset * 2 * codec->block(),
                offset, residual));
          }
        }
      }
    }
    if (std::getenv("BRIGADE_IN_PROCESS")) continue;  // memory checkers are slow
    const at::Tensor many = at::randn({(int64_t{1} << 24) + 77});
    ASSERT_NO_FATAL_FAILURE(expect_the_cpus_bytes(
        *codec, many, chunk_for(*codec, many.numel()), 0,
        codec->takes_residual() ? at::randn({many.numel()}).mul_(0.1) : at::Tensor()));
  }
}

TEST(CudaCodec, TheKernelsGiveTheBytesOfTheCpu) {
  testing::run_alone_on_cuda([] {
    ASSERT_TRUE(cuda_kernels(kGpu)) << *why_no_cuda_kernels(kGpu);
    compare_everything();
  });
}

// Runs of values of every size up to kMost, one behind the other in one memory, each at an
// odd address; and their messages.
struct Runs {
  static constexpr int64_t kMost = 4097;
  std::vector<int64_t> begins, messages;
  int64_t values = 0, bytes = 0;

  explicit Runs(const Codec& codec) {
    for (int64_t size = 0; size <= kMost; ++size) {
      begins.push_back(values | 1);
      values = begins.back() + size;
      messages.push_back(bytes);
      bytes += codec.wire_bytes(chunk_for(codec, size));
    }
  }
};

struct Coded {
  at::Tensor wire, lost, out, sum, mean;
};

Coded code_runs(const Codec& codec, const Runs& runs, const at::Tensor& values,
                const at::Tensor& residual) {
  Coded coded{at::full({runs.bytes}, 0xaa, values.options().dtype(at::kByte)),
              residual.clone(),
              values.clone(),
              values.clone(),
              {}};
  coded.mean = coded.wire.clone();
  at::Tensor own = values.clone();
  for (int64_t size = 0; size <= Runs::kMost; ++size) {
    const auto at = static_cast<size_t>(size);
    const int64_t chunk = chunk_for(codec, size);
    const auto run = [&](const at::Tensor& all) {
      return all.narrow(0, runs.begins[at], size);
    };
    const auto message = [&](const at::Tensor& all) {
      return all.narrow(0, runs.messages[at], codec.wire_bytes(chunk));
    };
    const at::Tensor lost = codec.takes_residual() ? run(coded.lost) : at::Tensor();
    codec.encode(run(values), chunk, 1.0 / 3, lost, message(coded.wire));
    codec.decode(message(coded.wire), chunk, run(coded.out));
    codec.decode_add(message(coded.wire), chunk, run(coded.sum));
    codec.reduce(run(own), message(coded.wire), chunk, 2, lost, message(coded.mean));
  }
  return coded;
}

TEST(CudaCodec, EverySizeUpToSomeBlocksGivesTheBytesOfTheCpu) {
  if (std::getenv("BRIGADE_IN_PROCESS"))
    GTEST_SKIP() << "under a checker of memory it would take minutes";
  testing::run_alone_on_cuda([] {
    ASSERT_TRUE(cuda_kernels(kGpu)) << *why_no_cuda_kernels(kGpu);
    at::manual_seed(12);
    for (const MakeCodec make : kCodecs) {
      const auto codec = make(CodecPath::by_device);
      SCOPED_TRACE(std::string(codec->name()));
      const Runs runs(*codec);
      const at::Tensor values = at::randn({runs.values}), residual = values.mul(0.25);
      const Coded cpu = code_runs(*codec, runs, values, residual);
      const Coded gpu = code_runs(*codec, runs, values.to(kGpu), residual.to(kGpu));
      EXPECT_TRUE(at::equal(gpu.wire.cpu(), cpu.wire));
      EXPECT_TRUE(at::equal(gpu.lost.cpu(), cpu.lost));
      EXPECT_TRUE(at::equal(gpu.out.cpu(), cpu.out));
      EXPECT_TRUE(at::equal(gpu.sum.cpu(), cpu.sum));
      EXPECT_TRUE(at::equal(gpu.mean.cpu(), cpu.mean));
    }
  });
}

// Runs the kernels whose threads share memory, for a checker of races.
TEST(CudaCodecShared, OneBlockForAllValuesIsThatOfTheCpu) {
  testing::run_alone_on_cuda([] {
    ASSERT_TRUE(cuda_kernels(kGpu)) << *why_no_cuda_kernels(kGpu);
    const auto codec = make_affine_tensor_codec(CodecPath::by_device);
    at::manual_seed(11);
    for (const int64_t size : {1, 513, 4097, 100'003}) {
      SCOPED_TRACE(size);
      for (const bool feedback : {false, true})
        ASSERT_NO_FATAL_FAILURE(
            expect_the_cpus_bytes(*codec, at::randn({size}), chunk_for(*codec, size), 0,
                                  feedback ? at::randn({size}).mul_(0.1) : at::Tensor()));
    }
  });
}

}  // namespace
}  // namespace brigade
