#include "codec/blocks_aten.h"

#include <ATen/ATen.h>

#include <array>
#include <limits>

#include "kernels/int4_block.h"

namespace brigade::blocks {
namespace {

constexpr float kLargest = 3.3e38f;
constexpr float kLargestRotated = 1e37f;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The smallest float >= range / levels; range in double.
at::Tensor step_of(const at::Tensor& range, double levels) {
  const at::Tensor exact = range / levels;
  const at::Tensor nearest = exact.to(at::kFloat);
  const at::Tensor next = at::nextafter(nearest, at::full_like(nearest, kInf));
  return at::where(nearest.to(at::kDouble) < exact, next, nearest);
}

// The scale, or 1 if it is 0 or NaN: the quotient is then 0 or not used.
at::Tensor divisor_of(const at::Tensor& scale) {
  return at::where(scale > 0, scale, at::ones_like(scale));
}

// 0.5 for blocks with a range that may overflow a float, else 1.
at::Tensor shrink_of(const at::Tensor& scale) {
  return at::where(scale > 0x1p100, at::full_like(scale, 0.5), at::ones_like(scale));
}

// Sums and differences of values at distances 64, 32, 16, 8 and 4, in rows of 128.
at::Tensor rotate(at::Tensor y) {
  const int64_t rows = y.size(0);
  for (const int64_t stride : {64, 32, 16, 8, 4}) {
    const at::Tensor pairs = y.view({rows, -1, 2, stride});
    const at::Tensor a = pairs.select(2, 0), b = pairs.select(2, 1);
    y = at::stack({a + b, a - b}, 2).view({rows, 128});
  }
  return y;
}

// int4_block.h's D.
at::Tensor signs_like(const at::Tensor& rows) {
  std::array<float, kernels::kInt4Block> signs{};
  for (unsigned i = 0; i < signs.size(); ++i) signs[i] = kernels::int4_sign(i);
  return at::tensor(at::ArrayRef<float>(signs), at::kFloat).to(rows.device());
}

}  // namespace

at::Tensor rows_of(const at::Tensor& values, float scale, const at::Tensor& residual,
                   int64_t block) {
  at::Tensor p = values.mul(scale);
  if (residual.defined()) p.add_(residual);
  const int64_t rows = (p.numel() + block - 1) / block;
  const int64_t missing = rows * block - p.numel();
  if (missing > 0) p = at::cat({p, p.narrow(0, p.numel() - 1, 1).expand({missing})});
  return p.view({rows, block});
}

Rows encode_int8(const at::Tensor& rows) {
  const at::Tensor finite = at::isfinite(rows).all(1, /*keepdim=*/true);
  const at::Tensor p = at::where(finite, rows, at::zeros_like(rows));
  const at::Tensor top = p.abs().amax(1, /*keepdim=*/true).clamp_max(kLargest);
  const at::Tensor scale = step_of(top.to(at::kDouble), 127.0);
  const at::Tensor whole = p.div(divisor_of(scale)).round_().clamp_(-127, 127);
  const at::Tensor params = at::where(finite, scale, at::full_like(scale, kNan));
  return {params, whole.to(at::kChar), whole.mul(params)};
}

at::Tensor decode_int8(const at::Tensor& params, const at::Tensor& codes) {
  return codes.to(at::kFloat).mul_(params);
}

Rows encode_int4(const at::Tensor& rows) {
  const at::Tensor finite = at::isfinite(rows).all(1, /*keepdim=*/true);
  const at::Tensor p = at::where(finite, rows, at::zeros_like(rows));
  const at::Tensor y =
      rotate(p.clamp(-kLargestRotated, kLargestRotated).mul_(signs_like(p)));
  const at::Tensor step =
      step_of(y.abs().amax(1, /*keepdim=*/true).to(at::kDouble), 7 * 32.0);
  const at::Tensor whole =
      y.div(divisor_of(step.mul(32))).round_().clamp_(-7, 7).to(at::kChar);
  const at::Tensor nibbles = whole.bitwise_and(15).to(at::kByte);
  const at::Tensor packed =
      nibbles.narrow(1, 0, 64).bitwise_or(nibbles.narrow(1, 64, 64).mul(16));
  const at::Tensor params = at::where(finite, step, at::full_like(step, kNan));
  return {params, packed, decode_int4(params, packed)};
}

at::Tensor decode_int4(const at::Tensor& params, const at::Tensor& codes) {
  const at::Tensor nibbles =
      at::cat({codes.bitwise_and(15), codes.bitwise_right_shift(4)}, 1).to(at::kFloat);
  const at::Tensor whole = at::where(nibbles > 7, nibbles - 16, nibbles);
  return rotate(whole).mul_(signs_like(whole)).mul_(params);
}

Rows encode_affine(const at::Tensor& rows) {
  const at::Tensor finite = at::isfinite(rows).all(1, /*keepdim=*/true);
  const at::Tensor p = at::where(finite, rows, at::zeros_like(rows));
  // + 0 turns -0 into 0, as the header's bits must be.
  const at::Tensor least = p.amin(1, true).clamp_(-kLargest, kLargest).add_(0.0);
  const at::Tensor most = p.amax(1, true).clamp_(-kLargest, kLargest).add_(0.0);
  const at::Tensor scale = step_of(most.to(at::kDouble) - least.to(at::kDouble), 255.0);
  const at::Tensor divisor = divisor_of(scale);
  const at::Tensor zero_code =
      least.to(at::kDouble).neg().div(divisor.to(at::kDouble)).round_().to(at::kFloat);
  const at::Tensor has_zero = at::logical_and(least <= 0, most >= 0);
  const at::Tensor low = at::where(at::logical_and(has_zero, scale > 0),
                                   at::zeros_like(scale) - zero_code * scale, least);
  const at::Tensor shrink = shrink_of(scale);
  const at::Tensor whole =
      (p * shrink - low * shrink).div_(divisor * shrink).round_().clamp_(0, 255);
  // A constant block beyond kLargest has all codes 0.
  const at::Tensor codes = at::where(scale > 0, whole, at::zeros_like(whole)).to(at::kByte);
  const at::Tensor params =
      at::cat({scale, low}, 1).masked_fill(finite.logical_not(), kNan);
  return {params, codes, decode_affine(params, codes)};
}

at::Tensor decode_affine(const at::Tensor& params, const at::Tensor& codes) {
  const at::Tensor scale = params.narrow(1, 0, 1), low = params.narrow(1, 1, 1);
  const at::Tensor shrink = shrink_of(scale);
  return codes.to(at::kFloat).mul_(scale * shrink).add_(low * shrink).div_(shrink);
}

}  // namespace brigade::blocks
