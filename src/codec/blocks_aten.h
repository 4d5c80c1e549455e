// Block-wise quantizers made of ATen operations, for any device. A row is a block. They
// follow kernels/int8_block.h, int4_block.h and affine_u8.h step by step, and give the same
// bits on CPU.
#pragma once
#include <ATen/core/Tensor.h>

namespace brigade::blocks {

// values * scale + residual (if defined), as rows of `block`. The last row is padded with
// its own last value, which leaves its range unchanged.
at::Tensor rows_of(const at::Tensor& values, float scale, const at::Tensor& residual,
                   int64_t block);

// The result of an encoding, one row a block. `params` are the header's floats: scale, or
// scale and low.
struct Rows {
  at::Tensor params;   // float32, rows x 1 or rows x 2
  at::Tensor codes;    // int8 or uint8, rows x block; int4: rows x block / 2
  at::Tensor decoded;  // float32, rows x block
};
Rows encode_int8(const at::Tensor& rows);
// The last row is padded with zeros.
Rows encode_int4(const at::Tensor& rows);
Rows encode_affine(const at::Tensor& rows);

// codes and params as above.
at::Tensor decode_int8(const at::Tensor& params, const at::Tensor& codes);
at::Tensor decode_int4(const at::Tensor& params, const at::Tensor& codes);
at::Tensor decode_affine(const at::Tensor& params, const at::Tensor& codes);

}  // namespace brigade::blocks
