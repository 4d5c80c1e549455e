// Passes g++'s coverage to libFuzzer. g++ calls a function at every edge; libFuzzer counts
// the entries of a section of this name, and clears it before each input. libFuzzer's
// function of that name only reports that it is not supported, so the linker replaces it by
// ours.
#include <cstdint>

namespace {
constexpr std::uintptr_t kCounters = 1 << 16;
__attribute__((section("__libfuzzer_extra_counters"))) std::uint8_t counters[kCounters];
}  // namespace

#define NOT_INSTRUMENTED \
  __attribute__((no_sanitize_coverage, no_sanitize("address", "undefined")))

extern "C" {

NOT_INSTRUMENTED void __wrap___sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& counter = counters[(place * 0x9E3779B97F4A7C15u >> 32) % kCounters];
  if (counter < 255) ++counter;
}

// libFuzzer does not have these comparisons of float and double.
NOT_INSTRUMENTED void __sanitizer_cov_trace_cmpf(float, float) {}
NOT_INSTRUMENTED void __sanitizer_cov_trace_cmpd(double, double) {}
}
