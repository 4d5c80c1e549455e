// Symmetric int8 with one scale for each block of 256 values; the last block may be
// shorter.
//
// Block: p = src * factor + residual, s = the smallest float >= max|p| / 127,
//        code = round(p / s) in [-127, 127], residual = p - code * s, decoded = code * s.
// Then |p - decoded| <= s / 2, plus a relative rounding error of 2^-22. Zero is decoded as
// zero, a block of zeros has scale 0, and denormal blocks keep their scale. |p| > 3.3e38 is
// encoded as 3.3e38. A block with a non-finite p has scale NaN and codes 0, and its
// residual stays as it was.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.h"

namespace brigade::kernels {

inline constexpr std::size_t kInt8Block = 256;

// Makes one pass over memory. `residual` may be empty: then it counts as zero, and none is
// written. REQUIRES: codes.size() == src.size(), scales.size() == ceil(src.size() / 256),
// residual empty or of src's size; nothing overlaps. Arrays need only their elements'
// alignment; zero elements are fine.
using Int8Encode = void (*)(std::span<const float> src, float factor,
                            std::span<float> residual, std::span<float> scales,
                            std::span<std::int8_t> codes) noexcept;
// A residual of the sum over a group's ranks: each rank adds its share of it.
struct Int8Feedback {
  const float* last;  // the residual of the last step; last * share is added
  float* next;        // becomes (p - decoded) / share; may be `last`
  float share;        // a power of two
};
// As Int8Encode, with such a residual, of src's size. For a block that keeps its residual,
// `next` becomes (last * share) / share: denormals may lose bits, as they do on a GPU.
using Int8EncodeShare = void (*)(std::span<const float> src, float factor,
                                 Int8Feedback feedback, std::span<float> scales,
                                 std::span<std::int8_t> codes) noexcept;
// dst = decoded, or dst += decoded. REQUIRES: as above.
using Int8Decode = void (*)(std::span<const float> scales,
                            std::span<const std::int8_t> codes,
                            std::span<float> dst) noexcept;

struct Int8Kernels {
  Int8Encode encode;
  Int8EncodeShare encode_share;
  Int8Decode decode;
  Int8Decode decode_add;
};

// REQUIRES: isa_runs(isa). Isa::portable is the reference; the others equal it bit for bit.
const Int8Kernels& int8_kernels(Isa isa = isa_best()) noexcept;

}  // namespace brigade::kernels
