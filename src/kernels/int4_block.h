// Int4, two values a byte, with one step for each block of 128 values, which are rotated
// first: that spreads a large value over its neighbours, so that the step can be finer.
//
// Vocabulary. A *group* is every fourth value of a block: 32 of them. H is the Hadamard
// matrix of 32, all 1 and -1: H H = 32. D is a diagonal of 1 and -1 (int4_sign): it also
// spreads a group of values with one sign, such as gradients behind a ReLU.
//
// Block: p = src * factor + residual, padded with zeros; y = H D p, group by group;
//        u = the smallest float >= max|y| / 224, code = round(y / (32 u)) in [-7, 7];
//        decoded = u (D H code), residual = p - decoded.
// D H code is a whole number, so decoding rounds once. The mean square of p - decoded
// over a block is at most (32 u / 2)^2 / 32. A block of zeros has step 0. |p| > 1e37 is
// encoded as 1e37. A block with a non-finite p has step NaN and codes 0, and its residual
// stays as it was.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.h"

namespace brigade::kernels {

inline constexpr std::size_t kInt4Block = 128;
// Byte i of a block has the code of value i in its low four bits, and of value i + 64 in
// the others; both are signed. The last block is whole, too.
inline constexpr std::size_t kInt4Bytes = kInt4Block / 2;

// D's sign, 1 or -1, of the value `index` of a block: in its index in the group, bits 0 and
// 1, and bits 2 and 3, are multiplied, and the products summed, which gives the flattest
// spectrum for 32.
constexpr float int4_sign(unsigned index) {
  const unsigned k = index / 4, both = k & (k >> 1);
  return (both & 1) != (both >> 2 & 1) ? -1.0f : 1.0f;
}

// Makes one pass over memory. `residual` may be empty: then it counts as zero, and none is
// written. REQUIRES: steps.size() == ceil(src.size() / 128), codes.size() == 64 *
// steps.size(), residual empty or of src's size; nothing overlaps. Arrays need only their
// elements' alignment; zero elements are fine.
using Int4Encode = void (*)(std::span<const float> src, float factor,
                            std::span<float> residual, std::span<float> steps,
                            std::span<std::uint8_t> codes) noexcept;
// dst = decoded, or dst += decoded. REQUIRES: as above.
using Int4Decode = void (*)(std::span<const float> steps,
                            std::span<const std::uint8_t> codes,
                            std::span<float> dst) noexcept;

struct Int4Kernels {
  Int4Encode encode;
  Int4Decode decode;
  Int4Decode decode_add;
};

// REQUIRES: isa_runs(isa). Isa::portable is the reference; the others equal it bit for bit.
const Int4Kernels& int4_kernels(Isa isa = isa_best()) noexcept;

}  // namespace brigade::kernels
