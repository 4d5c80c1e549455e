// Measures the codecs on a GPU, as a share of a device copy's bandwidth.
//
// cuda_codec_bench [MiB of values...] [CODEC...]: for each codec (or those named) and pass,
// divides the bytes that it must read and write by its time, beside a copy that moves as
// many in the same run. It does so for the CUDA kernels and for ATen's operations. The
// kernels' output is compared with the CPU's, bit for bit, in every pass; exits with 1 if
// one differs. Data that fits into the GPU's cache stays there, for the copy too.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/exception_text.h"
#include "codec/codec.h"
#include "codec/cuda_module.h"

namespace {

using namespace brigade;

const at::Device kGpu{at::kCUDA, 0};

// Milliseconds of one call: the median of rounds of several calls.
double time_of(const std::function<void()>& body, int rounds = 20) {
  constexpr int kCalls = 10;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  std::vector<double> times;
  for (int round = -3; round < rounds; ++round) {
    c10::Event begin(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(cuda.getStream(kGpu));
    for (int call = 0; call < kCalls; ++call) body();
    end.record(cuda.getStream(kGpu));
    end.synchronize();
    if (round >= 0) times.push_back(begin.elapsedTime(end) / kCalls);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

double terabytes_a_second(double bytes, double ms) { return bytes / ms * 1e-9; }

double copy_speed(int64_t bytes) {
  const at::Tensor from = at::zeros({bytes / 2}, at::TensorOptions(at::kByte).device(kGpu));
  const at::Tensor to = at::empty_like(from);
  const double ms = time_of([&] { to.copy_(from); });
  return terabytes_a_second(2.0 * static_cast<double>(from.numel()), ms);
}

// The memory that the passes read and write, on the host or on the GPU.
struct Memory {
  at::Tensor values, lost, wire, messages;
  Memory on(at::Device device) const {
    return {values.to(device, at::kFloat, false, true),
            lost.to(device, at::kFloat, false, true),
            wire.to(device, at::kByte, false, true),
            messages.to(device, at::kByte, false, true)};
  }
};

struct Pass {
  const char* name;
  double bytes;
  std::function<void(const Codec&, const Memory&)> run;
  std::vector<at::Tensor Memory::*> results;
};

std::vector<Pass> passes_of(const Codec& codec, int64_t n) {
  const auto floats = 4.0 * static_cast<double>(n);
  const auto message = static_cast<double>(codec.wire_bytes(n));
  std::vector<Pass> passes{
      {"encode",
       floats + message,
       [n](const Codec& c, const Memory& m) { c.encode(m.values, n, 1.0, {}, m.wire); },
       {&Memory::wire}},
      {"decode",
       floats + message,
       [n](const Codec& c, const Memory& m) { c.decode(m.wire, n, m.values); },
       {&Memory::values}},
      {"decode_add",
       2 * floats + message,
       [n](const Codec& c, const Memory& m) { c.decode_add(m.wire, n, m.values); },
       {&Memory::values}},
      {"reduce 4 ranks",
       floats + 4 * message,
       [n](const Codec& c, const Memory& m) {
         c.reduce(m.values, m.messages, n, 4, {}, m.wire);
       },
       {&Memory::wire}}};
  if (!codec.takes_residual()) return passes;
  passes.push_back({"reduce, residual",
                    3 * floats + 4 * message,
                    [n](const Codec& c, const Memory& m) {
                      c.reduce(m.values, m.messages, n, 4, m.lost, m.wire);
                    },
                    {&Memory::wire, &Memory::lost}});
  passes.push_back(
      {"encode, residual",
       3 * floats + message,
       [n](const Codec& c, const Memory& m) { c.encode(m.values, n, 1.0, m.lost, m.wire); },
       {&Memory::wire, &Memory::lost}});
  return passes;
}

// Whether the pass gives the same bits as the CPU.
bool is_verified(const Pass& pass, const Codec& codec, const Memory& host) {
  const Memory expected = host.on(at::kCPU), got = host.on(kGpu);
  pass.run(codec, expected);
  pass.run(codec, got);
  return std::ranges::all_of(pass.results, [&](at::Tensor Memory::*result) {
    return at::equal((got.*result).cpu(), expected.*result);
  });
}

// Returns whether all passes are verified.
bool bench(const Codec& codec, const Codec& aten, int64_t n) {
  Memory host{at::randn({n}),
              at::randn({n}).mul_(1e-3),
              at::empty({codec.wire_bytes(n)}, at::kByte),
              {}};
  codec.encode(host.values, n, 1.0, {}, host.wire);
  host.messages = at::cat({host.wire, host.wire, host.wire});
  bool all_verified = true;
  for (const Pass& pass : passes_of(codec, n)) {
    const bool verified = is_verified(pass, codec, host);
    all_verified = all_verified && verified;
    const Memory memory = host.on(kGpu);
    const double copy = copy_speed(static_cast<int64_t>(pass.bytes));
    const double ms = time_of([&] { pass.run(codec, memory); });
    const double slow = time_of([&] { pass.run(aten, memory); }, 5);
    std::printf("%-14s %-17s %6.0f %9.4f %8.2f %6.0f %% %12.1f   %s\n",
                std::string(codec.name()).c_str(), pass.name,
                4.0 * static_cast<double>(n) / (1 << 20), ms,
                terabytes_a_second(pass.bytes, ms),
                100 * terabytes_a_second(pass.bytes, ms) / copy, slow / ms,
                verified ? "yes" : "NO");
    std::fflush(stdout);
  }
  return all_verified;
}

}  // namespace

int main(int count, char** arguments) try {
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
    std::fprintf(stderr, "cuda_codec_bench: %s\n", dlerror());
    return 1;
  }
  if (const auto why = why_no_cuda_kernels(kGpu)) {
    std::fprintf(stderr, "cuda_codec_bench: no CUDA kernels: %s\n", why->c_str());
    return 1;
  }
  std::vector<int64_t> sizes;
  std::vector<std::string> names;
  for (const std::string argument : std::span(arguments, count).subspan(1)) {
    if (argument.find_first_not_of("0123456789") == std::string::npos)
      sizes.push_back(std::stoll(argument));
    else
      names.push_back(argument);
  }
  if (sizes.empty()) sizes = {4, 64, 256};
  using Make = std::unique_ptr<Codec> (*)(CodecPath);
  std::vector<std::pair<Make, std::string>> codecs;
  for (const Make make : std::initializer_list<Make>{
           make_fp16_codec, make_bf16_codec, make_int8_codec, make_int4_codec,
           make_affine_block_codec, make_affine_tensor_codec}) {
    codecs.emplace_back(make, make(CodecPath::by_device)->name());
  }
  for (const std::string& name : names) {
    if (std::ranges::find(codecs, name, &std::pair<Make, std::string>::second) !=
        codecs.end())
      continue;
    std::string known;
    for (const auto& [make, codec] : codecs) known += " " + codec;
    std::fprintf(stderr, "cuda_codec_bench: no codec named '%s'; known:%s\n", name.c_str(),
                 known.c_str());
    return 2;
  }
  std::printf("%-14s %-17s %6s %9s %8s %8s %12s   %s\n", "codec", "pass", "MiB", "ms",
              "TB/s", "of copy", "x of ATen", "verified");
  bool verified = true;
  for (const int64_t size : sizes) {
    for (const auto& [make, name] : codecs) {
      if (!names.empty() && std::ranges::find(names, name) == names.end()) continue;
      verified = bench(*make(CodecPath::by_device), *make(CodecPath::aten), size << 18) &&
                 verified;
    }
  }
  return verified ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "cuda_codec_bench: %s\n", base::text_of(error).c_str());
  return 1;
}
