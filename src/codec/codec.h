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
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace brigade {

struct OnCuda;
namespace kernels {
struct Messages;
struct OwnerStep;
}  // namespace kernels

// How a codec computes. `by_device` is for everyone: kernels for CPU tensors, for CUDA
// tensors too where cuda_module.h finds them, ATen operations for others. `aten` takes ATen
// operations everywhere, so that they can be tested without an accelerator. All give the
// same bytes, except for NaN payloads.
enum class CodecPath { by_device, aten };

// The residual of the last step, and where that of this one goes.
struct Residuals {
  Residuals() = default;
  Residuals(at::Tensor residual) : last(residual), next(std::move(residual)) {}
  Residuals(at::Tensor last_given, at::Tensor next_given)
      : last(std::move(last_given)), next(std::move(next_given)) {}
  bool defined() const { return next.defined(); }
  bool in_place() const { return last.is_same(next); }
  // part(tensor) of both.
  template <class Part>
  Residuals each(Part part) const {
    if (!defined()) return {};
    Residuals parts =
        in_place() ? Residuals(part(next)) : Residuals(part(last), part(next));
    parts.moved = moved;
    return parts;
  }
  // `next` gets the residual, and is to be changed in place. For those who do not change
  // every value.
  at::Tensor copied() const {
    if (defined() && !in_place()) next.copy_(last);
    return next;
  }

  at::Tensor last;
  at::Tensor next;
  // False: `last` is what the last step left, under the same division of the values among
  // the ranks. True: it comes from elsewhere, from other buckets, another division or a
  // checkpoint. An exchange must know; a codec need not.
  bool moved = true;
};

// Thread-safe: all methods are const and touch nothing but their arguments. The same input
// gives the same bytes on every rank and on every CPU. A message's memory must be aligned
// to 4 bytes; `wire_bytes` is a multiple of 4, so messages may lie side by side in one
// tensor. Arguments that break the vocabulary above throw brigade::Error.
//
// Arguments are checked here, once. A codec derives from this and gives its layout and
// three ways to compute it. The kernels work on raw memory of a CPU, their twins on that of
// a CUDA device. The ATen operations work on tensors of any device. All give the same
// bytes.
class Codec {
 public:
  virtual ~Codec() = default;

  std::string_view name() const { return name_; }
  // The length of a chunk is a multiple of this, in elements.
  int64_t block() const { return granularity_; }
  // Bytes of one message for a chunk of `chunk_elements`.
  int64_t wire_bytes(int64_t chunk_elements) const;
  // Whether `encode` accepts a residual. The plain casts do not.
  virtual bool takes_residual() const = 0;

  // p = values * scale + residual.last; `wire` becomes the message of p. With a residual,
  // residual.next = p - decoded(wire), in the same pass over memory. If a p is not
  // finite (NaN, Inf), its block decodes to NaN, and the block's residual stays as it was;
  // the plain casts carry over that one value. `values` is not changed. The tensors of
  // `residual` are undefined, or have the values' size, dtype and device.
  void encode(const at::Tensor& values, int64_t chunk_elements, double scale,
              const Residuals& residual, const at::Tensor& wire) const;
  // The first out.numel() values of the message: out = decoded, and out += decoded.
  // REQUIRES: out is 1-D contiguous float32 with numel() <= the number of values that were
  // encoded.
  void decode(const at::Tensor& wire, int64_t chunk_elements, const at::Tensor& out) const;
  void decode_add(const at::Tensor& wire, int64_t chunk_elements,
                  const at::Tensor& out) const;

  // The owner's part of an exchange: `wire` becomes the message of (own + the decoded
  // messages, in their order) / divisor. `messages` lie side by side, each of
  // wire_bytes(chunk_elements). With a residual, which is a share of the sum and not of the
  // mean, residual / divisor is added before, and residual = (p - decoded(wire)) * divisor.
  // `own` may be changed.
  void reduce(const at::Tensor& own, const at::Tensor& messages, int64_t chunk_elements,
              int divisor, const Residuals& residual, const at::Tensor& wire) const;

 protected:
  using Bytes = std::span<uint8_t>;
  using ConstBytes = std::span<const uint8_t>;

  Codec(std::string name, int64_t granularity, CodecPath path)
      : name_(std::move(name)), granularity_(granularity), path_(path) {}

  virtual int64_t header_bytes(int64_t chunk_elements) const = 0;
  // Of the codes of that many values, whatever their number.
  virtual int64_t code_bytes(int64_t elements) const = 0;

  // Values that can be encoded by themselves: a message of several times as many is their
  // headers and their codes, one after the other. 0: only a whole chunk.
  virtual int64_t piece() const { return 0; }

  // `headers` and `codes` are the two whole parts of a message, or those of a piece. There
  // is at least one value. The bytes behind the last value are zero already. `residual` is
  // empty or undefined if there is none.
  virtual void encode_kernel(std::span<const float> values, float scale,
                             std::span<float> residual, Bytes headers,
                             Bytes codes) const = 0;
  // The same with a residual of last / divisor, which leaves (p - decoded) * divisor in
  // `next`: in one pass, or false, and nothing is done.
  virtual bool encode_share_kernel(std::span<const float> /*values*/, float /*scale*/,
                                   std::span<const float> /*last*/,
                                   std::span<float> /*next*/, int /*divisor*/,
                                   Bytes /*headers*/, Bytes /*codes*/) const {
    return false;
  }
  virtual void decode_kernel(ConstBytes headers, ConstBytes codes, std::span<float> out,
                             bool add) const = 0;
  // The same on a CUDA device: what `kernels` returns.
  virtual int encode_cuda(const OnCuda& cuda, std::span<const float> values, float scale,
                          std::span<float> residual, Bytes headers, Bytes codes) const = 0;
  virtual int decode_cuda(const OnCuda& cuda, ConstBytes headers, ConstBytes codes,
                          std::span<float> out, bool add) const = 0;
  // Whether there are twins for CUDA at all; if not, ATen's operations are used there.
  virtual bool has_cuda_kernels() const { return true; }
  // reduce() on a CUDA device, all in one pass.
  virtual int reduce_cuda(const OnCuda& cuda, const kernels::Messages& messages,
                          const kernels::OwnerStep& reduction) const = 0;
  virtual void encode_aten(const at::Tensor& values, float scale,
                           const at::Tensor& residual, const at::Tensor& headers,
                           const at::Tensor& codes) const = 0;
  // The first `size` values.
  virtual at::Tensor decode_aten(const at::Tensor& headers, const at::Tensor& codes,
                                 int64_t size) const = 0;

 private:
  void decode_to(const at::Tensor& wire, int64_t chunk_elements, const at::Tensor& out,
                 bool add) const;
  // encode(), but with residual / divisor, and what is lost times `divisor`.
  void encode_share(const at::Tensor& values, int64_t chunk_elements, double scale,
                    const Residuals& residual, int divisor, const at::Tensor& wire) const;
  void encode_pieces(std::span<const float> values, float scale, const Residuals& residual,
                     int divisor, Bytes headers, Bytes codes) const;
  enum class Backend { cpu, cuda, aten };
  Backend backend_for(const at::Tensor& tensor) const;
  // Throws brigade::Error where an argument breaks the vocabulary above.
  void check_floats(const at::Tensor& tensor, const char* what,
                    int64_t chunk_elements) const;
  void check_residual(const Residuals& residual, const at::Tensor& values) const;
  void check_wire(const at::Tensor& wire, const at::Tensor& values,
                  int64_t chunk_elements) const;

  std::string name_;
  int64_t granularity_;
  CodecPath path_;
};

// The codecs of the library. Sizes are for n values, rounded up to a chunk.

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
