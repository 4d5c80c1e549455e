// Int4 in rotated blocks. A message is [step of each block][64 bytes a block].
#include <ATen/ATen.h>

#include "codec/blocks_aten.h"
#include "codec/codec.h"
#include "codec/cuda_module.h"
#include "kernels/int4_block.h"

namespace brigade {
namespace {

class Int4Codec final : public Codec {
 public:
  explicit Int4Codec(CodecPath path) : Codec("int4", kBlock, path) {}
  bool takes_residual() const override { return true; }

 private:
  static constexpr int64_t kBlock = kernels::kInt4Block;
  static constexpr int64_t kBytes = kernels::kInt4Bytes;

  static int64_t blocks_of(int64_t elements) { return (elements + kBlock - 1) / kBlock; }
  int64_t header_bytes(int64_t elements) const override {
    return blocks_of(elements) * static_cast<int64_t>(sizeof(float));
  }
  int64_t code_bytes(int64_t elements) const override {
    return blocks_of(elements) * kBytes;
  }
  int64_t piece() const override { return 8 * kBlock; }

  void encode_kernel(std::span<const float> values, float scale, std::span<float> residual,
                     Bytes headers, Bytes codes) const override {
    const std::size_t blocks = blocks_of(std::ssize(values));
    kernels_.encode(values, scale, residual,
                    {reinterpret_cast<float*>(headers.data()), blocks},
                    codes.first(blocks * kBytes));
  }
  void decode_kernel(ConstBytes headers, ConstBytes codes, std::span<float> out,
                     bool add) const override {
    const std::size_t blocks = blocks_of(std::ssize(out));
    const auto decode = add ? kernels_.decode_add : kernels_.decode;
    decode({reinterpret_cast<const float*>(headers.data()), blocks},
           codes.first(blocks * kBytes), out);
  }
  int encode_cuda(const OnCuda& cuda, std::span<const float> values, float scale,
                  std::span<float> residual, Bytes headers, Bytes codes) const override {
    return cuda.kernels.int4_encode(values.data(), scale, residual.data(),
                                    reinterpret_cast<float*>(headers.data()), codes.data(),
                                    values.size(), cuda.stream);
  }
  int decode_cuda(const OnCuda& cuda, ConstBytes headers, ConstBytes codes,
                  std::span<float> out, bool add) const override {
    return cuda.kernels.int4_decode(reinterpret_cast<const float*>(headers.data()),
                                    codes.data(), out.data(), out.size(), add, cuda.stream);
  }
  int reduce_cuda(const OnCuda& cuda, const kernels::Messages& messages,
                  const kernels::OwnerStep& reduction) const override {
    return cuda.kernels.reduce_int4(messages, reduction, cuda.stream);
  }
  void encode_aten(const at::Tensor& values, float scale, const at::Tensor& residual,
                   const at::Tensor& headers, const at::Tensor& codes) const override {
    const int64_t size = values.numel(), rows = blocks_of(size);
    at::Tensor p = values.mul(scale);
    if (residual.defined()) p.add_(residual);
    p = at::constant_pad_nd(p, {0, rows * kBlock - size}).view({rows, kBlock});
    const blocks::Rows coded = blocks::encode_int4(p);
    headers.view(at::kFloat).narrow(0, 0, rows).copy_(coded.params.view({-1}));
    codes.narrow(0, 0, rows * kBytes).copy_(coded.codes.view({-1}));
    if (!residual.defined()) return;
    const at::Tensor keep = coded.params.isnan().expand_as(p).reshape({-1});
    const at::Tensor lost = p.sub(coded.decoded).view({-1});
    residual.copy_(at::where(keep.narrow(0, 0, size), residual, lost.narrow(0, 0, size)));
  }
  at::Tensor decode_aten(const at::Tensor& headers, const at::Tensor& codes,
                         int64_t size) const override {
    const int64_t rows = blocks_of(size);
    return blocks::decode_int4(headers.view(at::kFloat).narrow(0, 0, rows).view({rows, 1}),
                               codes.narrow(0, 0, rows * kBytes).view({rows, kBytes}))
        .view({-1})
        .narrow(0, 0, size);
  }

  kernels::Int4Kernels kernels_ = kernels::int4_kernels();
};

}  // namespace

std::unique_ptr<Codec> make_int4_codec(CodecPath path) {
  return std::make_unique<Int4Codec>(path);
}

}  // namespace brigade
