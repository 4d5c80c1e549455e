#include "kernels/isa.h"

#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace brigade::kernels {
namespace {

constexpr Isa kAll[] = {Isa::portable, Isa::avx2, Isa::avx512};

Isa limit() noexcept {
  const char* wanted = std::getenv("BRIGADE_ISA");
  for (Isa isa : kAll) {
    if (wanted != nullptr && std::strcmp(wanted, isa_name(isa)) == 0) return isa;
  }
  return Isa::avx512;
}

#if defined(__x86_64__)
// Uses cpuid, because not every compiler's __builtin_cpu_supports knows the name.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

bool isa_runs(Isa isa) noexcept {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && has_f16c();
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             isa_runs(Isa::avx2);
  }
#endif
  return isa == Isa::portable;
}

Isa isa_best() noexcept {
  static const Isa best = [] {
    Isa found = Isa::portable;
    for (Isa isa : kAll) {
      if (isa <= limit() && isa_runs(isa)) found = isa;
    }
    return found;
  }();
  return best;
}

}  // namespace brigade::kernels
