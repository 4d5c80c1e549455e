// Affine uint8 in blocks of any length. Each block has a scale and a low end; the last
// block may be shorter.
//
// Block: p = src * factor + residual; range = max p - min p, in double;
//        scale = the smallest float >= range / 255, low = min p;
//        code = round((p - low) / scale) in [0, 255], decoded = low + code * scale.
// A range that contains zero has low = -(z * scale) with a whole z, so that zero is decoded
// as exactly zero. |p - decoded| <= scale / 2, plus the rounding of decoded itself (an ulp
// of the block's largest magnitude). A constant block has scale 0 and is exact. A larger
// magnitude than 3.3e38 is encoded as 3.3e38. A block with a non-finite p has scale and low
// NaN and codes 0, and its residual stays as it was.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.h"

namespace brigade::kernels {

struct AffineHeader {
  float scale;
  float low;
};

// Blocks that fit the first cache are read from memory once, longer ones twice.
// `residual` may be empty: then it counts as zero, and none is written.
// REQUIRES: block > 0, codes.size() == src.size(), headers.size() == ceil(src.size() /
// block), residual empty or of src's size; nothing overlaps. Arrays need only their
// elements' alignment; zero elements are fine.
using AffineEncode = void (*)(std::span<const float> src, float factor,
                              std::span<float> residual, std::size_t block,
                              std::span<AffineHeader> headers,
                              std::span<std::uint8_t> codes) noexcept;
// dst = decoded, or dst += decoded. REQUIRES: as above.
using AffineDecode = void (*)(std::span<const AffineHeader> headers, std::size_t block,
                              std::span<const std::uint8_t> codes,
                              std::span<float> dst) noexcept;

struct AffineKernels {
  AffineEncode encode;
  AffineDecode decode;
  AffineDecode decode_add;
};

// REQUIRES: isa_runs(isa). Isa::portable is the reference; the others equal it bit for bit.
const AffineKernels& affine_kernels(Isa isa = isa_best()) noexcept;

}  // namespace brigade::kernels
