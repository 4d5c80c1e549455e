// Measures the codec kernels on one thread, as a share of memcpy's bandwidth.
//
// A kernel that reads R and writes W bytes is compared with a memcpy of (R + W) / 2 bytes,
// which moves as many. The two alternate in one loop, so that noise affects both.
// `vs_memcpy` is the ratio of their bandwidths (medians); `GB/s` is (R + W) / median time.
// The result of the first call is checked.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/affine_u8.h"
#include "kernels/cast.h"
#include "kernels/int4_block.h"
#include "kernels/int8_block.h"

namespace brigade::kernels {
namespace {

constexpr std::size_t kElements = std::size_t{1} << 24;  // 64 MiB of float32
constexpr std::size_t kAffineBlock = 512;

// Aligns memory as torch's allocator does.
template <class T>
struct Buffer {
  explicit Buffer(std::size_t size)
      : memory(static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64)),
               std::free),
        span(memory.get(), size) {
    std::memset(memory.get(), 0, size * sizeof(T));
  }
  std::unique_ptr<T, decltype(&std::free)> memory;
  std::span<T> span;
};

// All inputs and outputs of the kernels, made once.
struct Data {
  Buffer<float> values{kElements}, residual{kElements}, out{kElements};
  Buffer<std::uint16_t> halves{kElements};
  Buffer<std::uint8_t> codes{kElements};
  Buffer<float> scales{kElements / kInt8Block};
  Buffer<float> steps{kElements / kInt4Block};
  Buffer<AffineHeader> headers{kElements / kAffineBlock};
  Buffer<char> copy_from{kElements * 8}, copy_to{kElements * 8};

  Data() {
    std::uint32_t state = 1;
    for (float& x : values.span) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    }
  }
  std::span<std::int8_t> signed_codes() {
    return {reinterpret_cast<std::int8_t*>(codes.span.data()), codes.span.size()};
  }
  static Data& get() {
    static Data data;
    return data;
  }
};

// The CPU time of this thread: other programs on the machine do not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds(const std::function<void()>& body) {
  const double start = cpu_seconds();
  body();
  return cpu_seconds() - start;
}

struct Case {
  std::string name;
  double bytes;  // read and written
  std::function<void()> kernel;
  std::function<void()> prepare;
  std::function<bool()> check;  // after prepare and one call
};

void measure(benchmark::State& state, const Case& c) {
  Data& data = Data::get();
  c.prepare();
  c.kernel();
  if (!c.check()) return state.SkipWithError("wrong result");
  const auto copied = static_cast<std::size_t>(c.bytes / 2);
  double kernel = 1e9, copy = 1e9;
  for (auto _ : state) {
    const double time = seconds(c.kernel);
    state.SetIterationTime(time);
    kernel = std::min(kernel, time);
    copy = std::min(copy, seconds([&] {
                      std::memcpy(data.copy_to.span.data(), data.copy_from.span.data(),
                                  copied);
                      benchmark::ClobberMemory();
                    }));
  }
  state.counters["GB/s"] = c.bytes / kernel / 1e9;
  state.counters["memcpy_GB/s"] = c.bytes / copy / 1e9;
  state.counters["vs_memcpy"] = copy / kernel;
}

bool close(std::span<const float> a, std::span<const float> b, float tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= tolerance)) return false;
  }
  return true;
}

const std::function<void()> kNothing = [] {};
const std::function<bool()> kUnchecked = [] { return true; };

void add_casts(std::vector<Case>& cases, const std::string& name, const CastKernels& k,
               float tolerance) {
  Data& d = Data::get();
  const auto narrow = [&d, k] { k.narrow(d.values.span, 1.0f, d.halves.span); };
  const auto widen = [&d, k] { k.widen(d.halves.span, 1.0f, d.out.span); };
  const auto widen_add = [&d, k] { k.widen_add(d.halves.span, d.out.span); };
  const auto decoded = [&d, tolerance] {
    return close(d.values.span, d.out.span, tolerance);
  };
  cases.push_back({name + "/narrow", kElements * 6.0, narrow, kNothing, kUnchecked});
  cases.push_back({name + "/widen", kElements * 6.0, widen, narrow, decoded});
  cases.push_back({name + "/widen_add", kElements * 10.0, widen_add, narrow, kUnchecked});
}

void add_int8(std::vector<Case>& cases, const std::string& name, const Int8Kernels& k) {
  Data& d = Data::get();
  const double wire = kElements * (1 + 4.0 / kInt8Block);
  const auto encode = [&d, k](std::span<float> residual) {
    k.encode(d.values.span, 1.0f, residual, d.scales.span, d.signed_codes());
  };
  const auto plain = [encode] { encode({}); };
  const auto feedback = [encode, &d] { encode(d.residual.span); };
  const auto decode = [&d, k] { k.decode(d.scales.span, d.signed_codes(), d.out.span); };
  const auto add = [&d, k] { k.decode_add(d.scales.span, d.signed_codes(), d.out.span); };
  const auto decoded = [&d] { return close(d.values.span, d.out.span, 0.005f); };
  cases.push_back(
      {name + "/encode_residual", kElements * 12.0 + wire, feedback, kNothing, kUnchecked});
  cases.push_back({name + "/encode", kElements * 4.0 + wire, plain, kNothing, kUnchecked});
  cases.push_back({name + "/decode", kElements * 4.0 + wire, decode, plain, decoded});
  cases.push_back({name + "/decode_add", kElements * 8.0 + wire, add, plain, kUnchecked});
}

void add_int4(std::vector<Case>& cases, const std::string& name, const Int4Kernels& k) {
  Data& d = Data::get();
  const double wire = kElements * (0.5 + 4.0 / kInt4Block);
  const auto codes = d.codes.span.first(kElements / 2);
  const auto encode = [=, &d](std::span<float> residual) {
    k.encode(d.values.span, 1.0f, residual, d.steps.span, codes);
  };
  const auto plain = [encode] { encode({}); };
  const auto feedback = [encode, &d] { encode(d.residual.span); };
  const auto decode = [=, &d] { k.decode(d.steps.span, codes, d.out.span); };
  const auto add = [=, &d] { k.decode_add(d.steps.span, codes, d.out.span); };
  // After the rotation an error is the sum of 32 roundings: about normal, with a deviation
  // of 0.07 for these values. The largest of millions is 5 to 6 times that.
  const auto decoded = [&d] { return close(d.values.span, d.out.span, 0.5f); };
  cases.push_back(
      {name + "/encode_residual", kElements * 12.0 + wire, feedback, kNothing, kUnchecked});
  cases.push_back({name + "/encode", kElements * 4.0 + wire, plain, kNothing, kUnchecked});
  cases.push_back({name + "/decode", kElements * 4.0 + wire, decode, plain, decoded});
  cases.push_back({name + "/decode_add", kElements * 8.0 + wire, add, plain, kUnchecked});
}

void add_affine(std::vector<Case>& cases, const std::string& name, const AffineKernels& k,
                std::size_t block) {
  Data& d = Data::get();
  const double wire = kElements + 8.0 * kElements / block;
  const auto headers = d.headers.span.first(kElements / block);
  const auto encode = [=, &d] {
    k.encode(d.values.span, 1.0f, {}, block, headers, d.codes.span);
  };
  const auto decode = [=, &d] { k.decode(headers, block, d.codes.span, d.out.span); };
  const auto add = [=, &d] { k.decode_add(headers, block, d.codes.span, d.out.span); };
  const auto decoded = [&d] { return close(d.values.span, d.out.span, 0.005f); };
  cases.push_back({name + "/encode", kElements * 4.0 + wire, encode, kNothing, kUnchecked});
  cases.push_back({name + "/decode", kElements * 4.0 + wire, decode, encode, decoded});
  cases.push_back({name + "/decode_add", kElements * 8.0 + wire, add, encode, kUnchecked});
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (!isa_runs(isa)) continue;
    const std::string name = isa_name(isa);
    add_casts(cases, name + "/fp16", fp16_kernels(isa), 0x1p-11f);
    add_casts(cases, name + "/bf16", bf16_kernels(isa), 0x1p-8f);
    add_int8(cases, name + "/int8", int8_kernels(isa));
    add_int4(cases, name + "/int4", int4_kernels(isa));
    add_affine(cases, name + "/affine_block", affine_kernels(isa), kAffineBlock);
    add_affine(cases, name + "/affine_tensor", affine_kernels(isa), kElements);
  }
  return cases;
}

}  // namespace
}  // namespace brigade::kernels

int main(int argc, char** argv) {
  using namespace brigade::kernels;
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("kernels", isa_name(isa_best()));
  for (const Case& c : make_cases()) {
    benchmark::RegisterBenchmark(c.name.c_str(), measure, c)
        ->UseManualTime()
        ->Iterations(15)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
