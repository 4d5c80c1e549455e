// fp16 and bf16: no header, two bytes a value.
#include <ATen/ATen.h>

#include "codec/codec.h"
#include "codec/cuda_module.h"
#include "kernels/cast.h"

namespace brigade {
namespace {

class HalfCodec final : public Codec {
 public:
  HalfCodec(std::string name, at::ScalarType dtype, const kernels::CastKernels& cast,
            CodecPath path)
      : Codec(std::move(name), kCacheLine, path), dtype_(dtype), cast_(cast) {}

  bool takes_residual() const override { return false; }

 private:
  static constexpr int64_t kCacheLine = 64;

  int64_t header_bytes(int64_t) const override { return 0; }
  int64_t code_bytes(int64_t elements) const override { return 2 * elements; }

  void encode_kernel(std::span<const float> values, float scale, std::span<float>, Bytes,
                     Bytes codes) const override {
    cast_.narrow(values, scale, {reinterpret_cast<uint16_t*>(codes.data()), values.size()});
  }
  void decode_kernel(ConstBytes, ConstBytes codes, std::span<float> out,
                     bool add) const override {
    const std::span halves(reinterpret_cast<const uint16_t*>(codes.data()), out.size());
    add ? cast_.widen_add(halves, out) : cast_.widen(halves, 1.0f, out);
  }
  int encode_cuda(const OnCuda& cuda, std::span<const float> values, float scale,
                  std::span<float>, Bytes, Bytes codes) const override {
    return cuda.kernels.narrow(half_, values.data(), scale,
                               reinterpret_cast<uint16_t*>(codes.data()), values.size(),
                               cuda.stream);
  }
  int decode_cuda(const OnCuda& cuda, ConstBytes, ConstBytes codes, std::span<float> out,
                  bool add) const override {
    return cuda.kernels.widen(half_, reinterpret_cast<const uint16_t*>(codes.data()),
                              out.data(), out.size(), add, cuda.stream);
  }
  int reduce_cuda(const OnCuda& cuda, const kernels::Messages& messages,
                  const kernels::OwnerStep& reduction) const override {
    return cuda.kernels.reduce_half(half_, messages, reduction, cuda.stream);
  }
  void encode_aten(const at::Tensor& values, float scale, const at::Tensor&,
                   const at::Tensor&, const at::Tensor& codes) const override {
    codes.view(dtype_).narrow(0, 0, values.numel()).copy_(values.mul(scale));
  }
  at::Tensor decode_aten(const at::Tensor&, const at::Tensor& codes,
                         int64_t size) const override {
    return codes.view(dtype_).narrow(0, 0, size).to(at::kFloat);
  }

  at::ScalarType dtype_;
  kernels::Half half_ = dtype_ == at::kHalf ? kernels::Half::fp16 : kernels::Half::bf16;
  kernels::CastKernels cast_;
};

}  // namespace

std::unique_ptr<Codec> make_fp16_codec(CodecPath path) {
  return std::make_unique<HalfCodec>("fp16", at::kHalf, kernels::fp16_kernels(), path);
}
std::unique_ptr<Codec> make_bf16_codec(CodecPath path) {
  return std::make_unique<HalfCodec>("bf16", at::kBFloat16, kernels::bf16_kernels(), path);
}

}  // namespace brigade
