// What all codecs share: arguments are checked once, then kernels or ATen do the work.
#pragma once
#include <span>
#include <string>

#include "codec/codec.h"
#include "codec/codecs.h"
#include "codec/cuda_module.h"

namespace brigade {

// A codec gives its layout and three ways to compute it. The kernels work on raw memory of
// a CPU, their twins on that of a CUDA device. The ATen operations work on tensors of any
// device. All give the same bytes.
class CodecBase : public Codec {
 public:
  std::string_view name() const final { return name_; }
  int64_t block() const final { return granularity_; }
  int64_t wire_bytes(int64_t chunk_elements) const final;

  void encode(const at::Tensor& values, int64_t chunk_elements, double scale,
              const Feedback& residual, const at::Tensor& wire) const final;
  void decode(const at::Tensor& wire, int64_t chunk_elements,
              const at::Tensor& out) const final;
  void decode_add(const at::Tensor& wire, int64_t chunk_elements,
                  const at::Tensor& out) const final;
  void reduce(const at::Tensor& own, const at::Tensor& messages, int64_t chunk_elements,
              int divisor, const Feedback& residual, const at::Tensor& wire) const final;

 protected:
  using Bytes = std::span<uint8_t>;
  using ConstBytes = std::span<const uint8_t>;

  CodecBase(std::string name, int64_t granularity, CodecPath path)
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
                          const kernels::Reduction& reduction) const = 0;
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
                    const Feedback& residual, int divisor, const at::Tensor& wire) const;
  void encode_pieces(std::span<const float> values, float scale, const Feedback& residual,
                     int divisor, Bytes headers, Bytes codes) const;
  enum class Way { cpu, cuda, aten };
  Way way_for(const at::Tensor& tensor) const;
  // Throws brigade::Error where an argument breaks the contract of codec.h.
  void check_floats(const at::Tensor& tensor, const char* what,
                    int64_t chunk_elements) const;
  void check_residual(const Feedback& residual, const at::Tensor& values) const;
  void check_wire(const at::Tensor& wire, const at::Tensor& values,
                  int64_t chunk_elements) const;

  std::string name_;
  int64_t granularity_;
  CodecPath path_;
};

}  // namespace brigade
