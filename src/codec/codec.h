// Tensor to wire and back: what every dense compressor is to the exchange layer. Codecs are
// pure functions of their arguments; they have no process group and no state.
//
// Vocabulary
// clang-format off
//   values    A 1-D contiguous float32 tensor, CPU or CUDA.
//   chunk     A run of values that travels as one message. Its length is a multiple of
//             `block()`. The values at hand may be fewer (the tail of a bucket, or none at
//             all); they are then filled up in the message only.
//   message   A 1-D contiguous uint8 tensor of `wire_bytes(chunk)` bytes, on the values'
//             device: [headers][codes]. All messages of one chunk length have the same
//             size. The bytes behind the last value's are zero, and no decoder reads them.
//   residual  Error feedback: what the encoding of the last step lost. It is added to the
//             values of this step, and replaced by what this one loses: where it is, or in
//             other memory.
// clang-format on
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace brigade {

// A residual: where that of the last step is, and where that of this one goes.
struct Feedback {
  Feedback() = default;
  Feedback(at::Tensor residual) : last(residual), next(std::move(residual)) {}
  Feedback(at::Tensor last_given, at::Tensor next_given)
      : last(std::move(last_given)), next(std::move(next_given)) {}
  bool defined() const { return next.defined(); }
  bool in_place() const { return last.is_same(next); }
  // part(tensor) of both.
  template <class Part>
  Feedback each(Part part) const {
    if (!defined()) return {};
    return in_place() ? Feedback(part(next)) : Feedback(part(last), part(next));
  }
  // `next` gets the residual, and is to be changed in place. For those who do not change
  // every value.
  at::Tensor copied() const {
    if (defined() && !in_place()) next.copy_(last);
    return next;
  }

  at::Tensor last;
  at::Tensor next;
};

// Thread-safe: all methods are const and touch nothing but their arguments. The same input
// gives the same bytes on every rank and on every CPU. A message's memory must be aligned
// to 4 bytes; `wire_bytes` is a multiple of 4, so messages may lie side by side in one
// tensor. Arguments that break the vocabulary above throw brigade::Error.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual std::string_view name() const = 0;
  // The length of a chunk is a multiple of this, in elements.
  virtual int64_t block() const = 0;
  // Bytes of one message for a chunk of `chunk_elements`.
  virtual int64_t wire_bytes(int64_t chunk_elements) const = 0;
  // Whether `encode` accepts a residual. The plain casts do not.
  virtual bool takes_residual() const = 0;

  // p = values * scale + residual.last; `wire` becomes the message of p. With a residual,
  // residual.next = p - decoded(wire), in the same pass over memory. If a p is not
  // finite (NaN, Inf), its block decodes to NaN, and the block's residual stays as it was;
  // the plain casts carry over that one value. `values` is not changed. The tensors of
  // `residual` are undefined, or have the values' size, dtype and device.
  virtual void encode(const at::Tensor& values, int64_t chunk_elements, double scale,
                      const Feedback& residual, const at::Tensor& wire) const = 0;
  // The first out.numel() values of the message: out = decoded, and out += decoded.
  // REQUIRES: out is 1-D contiguous float32 with numel() <= the number of values that were
  // encoded.
  virtual void decode(const at::Tensor& wire, int64_t chunk_elements,
                      const at::Tensor& out) const = 0;
  virtual void decode_add(const at::Tensor& wire, int64_t chunk_elements,
                          const at::Tensor& out) const = 0;

  // The owner's part of an exchange: `wire` becomes the message of (own + the decoded
  // messages, in their order) / divisor. `messages` lie side by side, each of
  // wire_bytes(chunk_elements). With a residual, which is a share of the sum and not of the
  // mean, residual / divisor is added before, and residual = (p - decoded(wire)) * divisor.
  // `own` may be changed.
  virtual void reduce(const at::Tensor& own, const at::Tensor& messages,
                      int64_t chunk_elements, int divisor, const Feedback& residual,
                      const at::Tensor& wire) const = 0;
};

}  // namespace brigade
