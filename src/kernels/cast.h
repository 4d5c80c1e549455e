// Narrows float32 to fp16 and bf16, and widens it back. Halves are bit patterns. Arrays
// need only their elements' alignment; zero elements are fine.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/isa.h"

namespace brigade::kernels {

// dst[i] = half(src[i] * scale), rounded to nearest even. NaN stays NaN (sign and upper
// payload are kept, and it is made quiet). Values beyond the half's range become Inf.
// Denormal halves are exact and never flushed. REQUIRES: dst.size() == src.size(); the two
// do not overlap.
using Narrow = void (*)(std::span<const float> src, float scale,
                        std::span<std::uint16_t> dst) noexcept;
// dst[i] = float(src[i]) * scale. Exact for scale 1.
// REQUIRES: dst.size() == src.size(); the two do not overlap.
using Widen = void (*)(std::span<const std::uint16_t> src, float scale,
                       std::span<float> dst) noexcept;
// dst[i] += float(src[i]). REQUIRES: as above.
using WidenAdd = void (*)(std::span<const std::uint16_t> src,
                          std::span<float> dst) noexcept;

struct CastKernels {
  Narrow narrow;
  Widen widen;
  WidenAdd widen_add;
};

// REQUIRES: isa_runs(isa). Isa::portable is the reference; the others equal it bit for bit
// (except that an addition may keep either of two NaNs).
const CastKernels& fp16_kernels(Isa isa = isa_best()) noexcept;
const CastKernels& bf16_kernels(Isa isa = isa_best()) noexcept;

}  // namespace brigade::kernels
