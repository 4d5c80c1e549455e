// The codecs of the library. Sizes are for n values, rounded up to a chunk.
#pragma once
#include <memory>

#include "codec/codec.h"

namespace brigade {

// Plain casts, rounded to nearest even; 2n bytes, no residual. fp16 gives Inf beyond 65504,
// bf16 has float's range.
std::unique_ptr<Codec> make_fp16_codec(CodecPath path = CodecPath::by_device);
std::unique_ptr<Codec> make_bf16_codec(CodecPath path = CodecPath::by_device);
// Symmetric: a scale for each 256 values, codes in [-127, 127]; n + 4 n / 256 bytes.
// |p - decoded| <= scale / 2.
std::unique_ptr<Codec> make_int8_codec(CodecPath path = CodecPath::by_device);
// Rotated and symmetric: a step for each 128 values, codes in [-7, 7], two to a byte;
// n / 2 + 4 n / 128 bytes. Values of one size come back with an error of about 0.12 of it,
// as a root mean square.
std::unique_ptr<Codec> make_int4_codec(CodecPath path = CodecPath::by_device);
// Affine: scale and low end for each 512 values, codes in [0, 255]; n + 8 n / 512 bytes.
// Zero stays exactly zero.
std::unique_ptr<Codec> make_affine_block_codec(CodecPath path = CodecPath::by_device);
// The same with one scale and low end for the whole chunk: n + 8 bytes. Two passes over
// memory.
std::unique_ptr<Codec> make_affine_tensor_codec(CodecPath path = CodecPath::by_device);
// The share `ratio` of each 65,536 values with the largest magnitudes, rounded up, and
// their places; 6 bytes each. Everything else is lost, or stays in the residual. REQUIRES:
// 0 < ratio <= 1.
std::unique_ptr<Codec> make_top_k_codec(double ratio,
                                        CodecPath path = CodecPath::by_device);

}  // namespace brigade
