#include "kernels/cast.h"

#include "kernels/cpu/kernel_body.h"

namespace brigade::kernels {
namespace {

// ---- one value --------------------------------------------------------------------------

struct Bf16 {
  BRIGADE_BODY static std::uint16_t narrow(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40u;  // quiet
    return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
  BRIGADE_BODY static float widen(std::uint16_t half) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
  }
};

struct Fp16 {
  BRIGADE_BODY static std::uint16_t narrow(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    return static_cast<std::uint16_t>(sign | narrow_magnitude(magnitude));
  }
  BRIGADE_BODY static float widen(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t magnitude = half & 0x7fffu;
    return std::bit_cast<float>(sign | widen_magnitude(magnitude));
  }

 private:
  BRIGADE_BODY static std::uint32_t narrow_magnitude(std::uint32_t bits) {
    if (bits > 0x7f800000u) return 0x7e00u | ((bits >> 13) & 0x3ffu);  // a quiet NaN
    if (bits >= 0x47800000u) return 0x7c00u;                           // 65536 and more
    if (bits < 0x38800000u) {
      // Below 2^-14 halves are multiples of 2^-24, the ulp of 0.5, so the addition rounds.
      const float sum = std::bit_cast<float>(bits) + 0.5f;
      return std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5f);
    }
    // Exponent bias 127 to 15, then round 13 bits away; a carry into the exponent is right,
    // up to Inf.
    return (bits - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  }
  BRIGADE_BODY static std::uint32_t widen_magnitude(std::uint32_t half) {
    if (half > 0x7c00u) return (half << 13) | 0x7fc00000u;
    if (half == 0x7c00u) return 0x7f800000u;
    if (half < 0x400u)
      return std::bit_cast<std::uint32_t>(static_cast<float>(half) * 0x1p-24f);
    return (half << 13) + (112u << 23);
  }
};

// ---- one tile ---------------------------------------------------------------------------

template <class Half>
BRIGADE_BODY void narrow_body(const float* __restrict src, float scale,
                              std::uint16_t* __restrict dst, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) dst[i] = Half::narrow(src[i] * scale);
}
template <class Half>
BRIGADE_BODY void widen_body(const std::uint16_t* __restrict src, float scale,
                             float* __restrict dst, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) dst[i] = Half::widen(src[i]) * scale;
}
template <class Half>
BRIGADE_BODY void widen_add_body(const std::uint16_t* __restrict src, float* __restrict dst,
                                 std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) dst[i] += Half::widen(src[i]);
}

#define BRIGADE_CAST_VARIANT(Name, Half, Target)                                 \
  struct Name {                                                                  \
    Target static void narrow(const float* src, float scale, std::uint16_t* dst, \
                              std::size_t size) noexcept {                       \
      narrow_body<Half>(src, scale, dst, size);                                  \
    }                                                                            \
    Target static void widen(const std::uint16_t* src, float scale, float* dst,  \
                             std::size_t size) noexcept {                        \
      widen_body<Half>(src, scale, dst, size);                                   \
    }                                                                            \
    Target static void widen_add(const std::uint16_t* src, float* dst,           \
                                 std::size_t size) noexcept {                    \
      widen_add_body<Half>(src, dst, size);                                      \
    }                                                                            \
  }
BRIGADE_CAST_VARIANT(Bf16Portable, Bf16, );
BRIGADE_CAST_VARIANT(Bf16Avx2, Bf16, BRIGADE_AVX2);
BRIGADE_CAST_VARIANT(Bf16Avx512, Bf16, BRIGADE_AVX512);
BRIGADE_CAST_VARIANT(Fp16Portable, Fp16, );
#undef BRIGADE_CAST_VARIANT

#if defined(__x86_64__)
// fp16 has its own instructions, which round, saturate and quiet NaN as the code above.
struct Fp16Avx2 {
  BRIGADE_AVX2 static void narrow(const float* src, float scale, std::uint16_t* dst,
                                  std::size_t size) noexcept {
    const __m256 factor = _mm256_set1_ps(scale);
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(src + i), factor);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                       _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    narrow_body<Fp16>(src + i, scale, dst + i, size - i);
  }
  BRIGADE_AVX2 static void widen(const std::uint16_t* src, float scale, float* dst,
                                 std::size_t size) noexcept {
    const __m256 factor = _mm256_set1_ps(scale);
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
      _mm256_storeu_ps(dst + i, _mm256_mul_ps(load(src + i), factor));
    }
    widen_body<Fp16>(src + i, scale, dst + i, size - i);
  }
  BRIGADE_AVX2 static void widen_add(const std::uint16_t* src, float* dst,
                                     std::size_t size) noexcept {
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
      _mm256_storeu_ps(dst + i, _mm256_add_ps(_mm256_loadu_ps(dst + i), load(src + i)));
    }
    widen_add_body<Fp16>(src + i, dst + i, size - i);
  }

 private:
  BRIGADE_AVX2 static __m256 load(const std::uint16_t* src) noexcept {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
  }
};

struct Fp16Avx512 {
  // Masked forms with all lanes on, because g++ 12 warns inside the headers of the plain
  // ones.
  static constexpr __mmask16 kAll = 0xffff;
  BRIGADE_AVX512 static void narrow(const float* src, float scale, std::uint16_t* dst,
                                    std::size_t size) noexcept {
    const __m512 factor = _mm512_set1_ps(scale);
    std::size_t i = 0;
    for (; i + 16 <= size; i += 16) {
      const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(src + i), factor);
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(dst + i),
          _mm512_maskz_cvtps_ph(kAll, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    narrow_body<Fp16>(src + i, scale, dst + i, size - i);
  }
  BRIGADE_AVX512 static void widen(const std::uint16_t* src, float scale, float* dst,
                                   std::size_t size) noexcept {
    const __m512 factor = _mm512_set1_ps(scale);
    std::size_t i = 0;
    for (; i + 16 <= size; i += 16) {
      _mm512_storeu_ps(dst + i, _mm512_mul_ps(load(src + i), factor));
    }
    widen_body<Fp16>(src + i, scale, dst + i, size - i);
  }
  BRIGADE_AVX512 static void widen_add(const std::uint16_t* src, float* dst,
                                       std::size_t size) noexcept {
    std::size_t i = 0;
    for (; i + 16 <= size; i += 16) {
      _mm512_storeu_ps(dst + i, _mm512_add_ps(_mm512_loadu_ps(dst + i), load(src + i)));
    }
    widen_add_body<Fp16>(src + i, dst + i, size - i);
  }

 private:
  BRIGADE_AVX512 static __m512 load(const std::uint16_t* src) noexcept {
    return _mm512_maskz_cvtph_ps(kAll,
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)));
  }
};
#else
using Fp16Avx2 = Fp16Portable;
using Fp16Avx512 = Fp16Portable;
#endif

// ---- whole buffers ----------------------------------------------------------------------

template <class Variant>
void narrow(std::span<const float> src, float scale,
            std::span<std::uint16_t> dst) noexcept {
  Variant::narrow(src.data(), scale, dst.data(), dst.size());
}
template <class Variant>
void widen(std::span<const std::uint16_t> src, float scale, std::span<float> dst) noexcept {
  write_tiles(dst.data(), dst.size(), [&](float* to, std::size_t at, std::size_t size) {
    Variant::widen(src.data() + at, scale, to, size);
  });
}
template <class Variant>
void widen_add(std::span<const std::uint16_t> src, std::span<float> dst) noexcept {
  Variant::widen_add(src.data(), dst.data(), dst.size());
}

template <class Variant>
constexpr CastKernels kKernels{narrow<Variant>, widen<Variant>, widen_add<Variant>};

}  // namespace

const CastKernels& fp16_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kKernels<Fp16Avx512>;
  if (isa == Isa::avx2) return kKernels<Fp16Avx2>;
  return kKernels<Fp16Portable>;
}
const CastKernels& bf16_kernels(Isa isa) noexcept {
  if (isa == Isa::avx512) return kKernels<Bf16Avx512>;
  if (isa == Isa::avx2) return kKernels<Bf16Avx2>;
  return kKernels<Bf16Portable>;
}

}  // namespace brigade::kernels
