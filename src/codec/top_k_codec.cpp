// The largest values of each block, with their places. A message is [values of all
// blocks][places of all blocks].
#include <ATen/ATen.h>

#include <cmath>

#include "brigade/error.h"
#include "codec/codec.h"
#include "codec/cuda_module.h"
#include "kernels/top_k.h"

namespace brigade {
namespace {

class TopKCodec final : public Codec {
 public:
  TopKCodec(double ratio, CodecPath path)
      : Codec("topk", kCacheLine, path), ratio_(ratio) {}
  bool takes_residual() const override { return true; }

 private:
  static constexpr int64_t kCacheLine = 64;
  static constexpr int64_t kBlock = kernels::kTopKBlock;

  // Values that are kept of a block of that many, and of a chunk.
  int64_t kept_of(int64_t block) const {
    return static_cast<int64_t>(std::ceil(ratio_ * static_cast<double>(block)));
  }
  int64_t kept(int64_t elements) const {
    return elements / kBlock * kept_of(kBlock) + kept_of(elements % kBlock);
  }
  int64_t header_bytes(int64_t elements) const override { return 4 * kept(elements); }
  int64_t code_bytes(int64_t elements) const override {
    return (kept(elements) + 1) / 2 * 4;
  }

  // body(where the block begins, its size, where its kept values begin, their number)
  template <class Body>
  void each_block(int64_t elements, Body body) const {
    int64_t begin = 0;
    for (int64_t at = 0; at < elements; at += kBlock) {
      const int64_t size = std::min(kBlock, elements - at), count = kept_of(size);
      body(at, size, begin, count);
      begin += count;
    }
  }

  // The same for a message whose chunk keeps `total` values. The block that was encoded may
  // be longer than what is decoded; behind its values there are zeros.
  template <class Body>
  void each_coded_block(int64_t elements, int64_t total, Body body) const {
    each_block(elements, [&](int64_t at, int64_t size, int64_t begin, int64_t) {
      body(at, size, begin, std::min(kept_of(kBlock), total - begin));
    });
  }

  void encode_kernel(std::span<const float> values, float scale, std::span<float> residual,
                     Bytes headers, Bytes codes) const override {
    auto* to = reinterpret_cast<float*>(headers.data());
    auto* places = reinterpret_cast<uint16_t*>(codes.data());
    const int64_t total = kept(std::ssize(values));
    if (total % 2 == 1) places[total] = 0;  // fills up to 4 bytes
    each_block(std::ssize(values), [&](size_t at, size_t size, size_t begin, size_t count) {
      kernels::top_k(values.subspan(at, size), scale,
                     residual.empty() ? residual : residual.subspan(at, size),
                     {to + begin, count}, {places + begin, count});
    });
  }
  void decode_kernel(ConstBytes headers, ConstBytes codes, std::span<float> out,
                     bool add) const override {
    const auto* from = reinterpret_cast<const float*>(headers.data());
    const auto* places = reinterpret_cast<const uint16_t*>(codes.data());
    each_coded_block(std::ssize(out), std::ssize(headers) / 4,
                     [&](size_t at, size_t size, size_t begin, size_t count) {
                       kernels::top_k_decode({from + begin, count}, {places + begin, count},
                                             out.subspan(at, size), add);
                     });
  }
  bool has_cuda_kernels() const override { return false; }
  int encode_cuda(const OnCuda&, std::span<const float>, float, std::span<float>, Bytes,
                  Bytes) const override {
    throw Error("codec topk has no CUDA kernel");
  }
  int decode_cuda(const OnCuda&, ConstBytes, ConstBytes, std::span<float>,
                  bool) const override {
    throw Error("codec topk has no CUDA kernel");
  }
  int reduce_cuda(const OnCuda&, const kernels::Messages&,
                  const kernels::OwnerStep&) const override {
    throw Error("codec topk has no CUDA kernel");
  }

  void encode_aten(const at::Tensor& values, float scale, const at::Tensor& residual,
                   const at::Tensor& headers, const at::Tensor& codes) const override {
    at::Tensor p = values.mul(scale);
    if (residual.defined()) p.add_(residual);
    each_block(p.numel(), [&](int64_t at, int64_t size, int64_t begin, int64_t count) {
      const at::Tensor block = p.narrow(0, at, size);
      const at::Tensor finite = at::isfinite(block).all();
      const at::Tensor places = places_of_largest(block, count);
      headers.view(at::kFloat)
          .narrow(0, begin, count)
          .copy_(at::where(finite, block.index_select(0, places),
                           at::full({}, std::nan(""), block.options())));
      codes.view(at::kShort)
          .narrow(0, begin, count)
          .copy_(at::where(finite, places, at::zeros_like(places)));
      if (!residual.defined()) return;
      at::Tensor lost = residual.narrow(0, at, size);
      lost.copy_(at::where(finite, block.index_fill(0, places, 0), lost));
    });
  }
  // Rising. Of equal magnitudes the first ones are taken.
  static at::Tensor places_of_largest(const at::Tensor& block, int64_t count) {
    const at::Tensor places = at::arange(
        block.numel(), at::TensorOptions().dtype(at::kLong).device(block.device()));
    const at::Tensor magnitudes = block.abs().view(at::kInt).to(at::kLong);
    const at::Tensor keys = magnitudes.mul(kBlock).add_((kBlock - 1) - places);
    return std::get<0>(std::get<1>(keys.topk(count)).sort());
  }
  at::Tensor decode_aten(const at::Tensor& headers, const at::Tensor& codes,
                         int64_t size) const override {
    at::Tensor out = at::zeros({size}, headers.options().dtype(at::kFloat));
    const auto decode = [&](int64_t at, int64_t length, int64_t begin, int64_t count) {
      const at::Tensor values = headers.view(at::kFloat).narrow(0, begin, count);
      const at::Tensor places =
          codes.view(at::kShort).narrow(0, begin, count).to(at::kLong).bitwise_and(0xffff);
      const at::Tensor spread =
          at::zeros({kBlock}, out.options()).index_add_(0, places, values);
      out.narrow(0, at, length)
          .copy_(at::where(values[0].isnan(), values[0], spread.narrow(0, 0, length)));
    };
    each_coded_block(size, headers.numel() / 4, decode);
    return out;
  }

  const double ratio_;
};

}  // namespace

std::unique_ptr<Codec> make_top_k_codec(double ratio, CodecPath path) {
  return std::make_unique<TopKCodec>(ratio, path);
}

}  // namespace brigade
