// The quantizers. A message is [header of each block][one byte a value].
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "codec/blocks_aten.h"
#include "codec/codec.h"
#include "codec/cuda_module.h"
#include "kernels/affine_u8.h"
#include "kernels/int8_block.h"

namespace brigade {
namespace {

constexpr int64_t kAffineBlock = 512;
constexpr int64_t kCacheLine = 64;

int64_t blocks_in(int64_t elements, int64_t block) {
  return (elements + block - 1) / block;
}

// The parts of the headers and codes that `size` values in blocks of `block` use, as rows.
struct UsedRows {
  at::Tensor params, codes;
};
UsedRows used_rows(const at::Tensor& headers, const at::Tensor& codes, int64_t params,
                   int64_t size, int64_t block, at::ScalarType code_type) {
  const int64_t rows = blocks_in(size, block);
  return {headers.view(at::kFloat).narrow(0, 0, rows * params).view({rows, params}),
          codes.view(code_type).narrow(0, 0, rows * block).view({rows, block})};
}

// Stores an encoding; the codes that fill up the last row stay out of the message.
void store(const blocks::Rows& rows, const at::Tensor& headers, const at::Tensor& codes,
           int64_t size) {
  headers.view(at::kFloat).narrow(0, 0, rows.params.numel()).copy_(rows.params.view({-1}));
  codes.view(rows.codes.scalar_type())
      .narrow(0, 0, size)
      .copy_(rows.codes.view({-1}).narrow(0, 0, size));
}

// residual = p - decoded; rows that do not decode to finite values leave it alone.
void update_residual(const blocks::Rows& rows, const at::Tensor& p,
                     const at::Tensor& residual) {
  if (!residual.defined()) return;
  const int64_t size = residual.numel();
  const at::Tensor keep = rows.params.narrow(1, 0, 1).isnan().expand_as(p);
  const at::Tensor error = p.sub(rows.decoded).view({-1}).narrow(0, 0, size);
  residual.copy_(at::where(keep.reshape({-1}).narrow(0, 0, size), residual, error));
}

class Int8Codec final : public Codec {
 public:
  explicit Int8Codec(CodecPath path) : Codec("int8", kBlock, path) {}
  bool takes_residual() const override { return true; }

 private:
  static constexpr int64_t kBlock = kernels::kInt8Block;

  int64_t header_bytes(int64_t elements) const override {
    return blocks_in(elements, kBlock) * static_cast<int64_t>(sizeof(float));
  }
  int64_t code_bytes(int64_t elements) const override { return elements; }
  int64_t piece() const override { return 4 * kBlock; }

  void encode_kernel(std::span<const float> values, float scale, std::span<float> residual,
                     Bytes headers, Bytes codes) const override {
    const std::size_t blocks = blocks_in(values.size(), kBlock);
    kernels_.encode(values, scale, residual,
                    {reinterpret_cast<float*>(headers.data()), blocks},
                    {reinterpret_cast<int8_t*>(codes.data()), values.size()});
  }
  bool encode_share_kernel(std::span<const float> values, float scale,
                           std::span<const float> last, std::span<float> next, int divisor,
                           Bytes headers, Bytes codes) const override {
    // Others' reciprocals are not exact.
    if (!std::has_single_bit(static_cast<unsigned>(divisor))) return false;
    const std::size_t blocks = blocks_in(values.size(), kBlock);
    kernels_.encode_share(values, scale,
                          {last.data(), next.data(), 1 / static_cast<float>(divisor)},
                          {reinterpret_cast<float*>(headers.data()), blocks},
                          {reinterpret_cast<int8_t*>(codes.data()), values.size()});
    return true;
  }
  void decode_kernel(ConstBytes headers, ConstBytes codes, std::span<float> out,
                     bool add) const override {
    const std::size_t blocks = blocks_in(out.size(), kBlock);
    const auto decode = add ? kernels_.decode_add : kernels_.decode;
    decode({reinterpret_cast<const float*>(headers.data()), blocks},
           {reinterpret_cast<const int8_t*>(codes.data()), out.size()}, out);
  }
  int encode_cuda(const OnCuda& cuda, std::span<const float> values, float scale,
                  std::span<float> residual, Bytes headers, Bytes codes) const override {
    return cuda.kernels.int8_encode(
        values.data(), scale, residual.data(), reinterpret_cast<float*>(headers.data()),
        reinterpret_cast<int8_t*>(codes.data()), values.size(), cuda.stream);
  }
  int decode_cuda(const OnCuda& cuda, ConstBytes headers, ConstBytes codes,
                  std::span<float> out, bool add) const override {
    return cuda.kernels.int8_decode(reinterpret_cast<const float*>(headers.data()),
                                    reinterpret_cast<const int8_t*>(codes.data()),
                                    out.data(), out.size(), add, cuda.stream);
  }
  int reduce_cuda(const OnCuda& cuda, const kernels::Messages& messages,
                  const kernels::OwnerStep& reduction) const override {
    return cuda.kernels.reduce_int8(messages, reduction, cuda.stream);
  }
  void encode_aten(const at::Tensor& values, float scale, const at::Tensor& residual,
                   const at::Tensor& headers, const at::Tensor& codes) const override {
    const at::Tensor p = blocks::rows_of(values, scale, residual, kBlock);
    const blocks::Rows rows = blocks::encode_int8(p);
    store(rows, headers, codes, values.numel());
    update_residual(rows, p, residual);
  }
  at::Tensor decode_aten(const at::Tensor& headers, const at::Tensor& codes,
                         int64_t size) const override {
    const UsedRows used = used_rows(headers, codes, 1, size, kBlock, at::kChar);
    return blocks::decode_int8(used.params, used.codes).view({-1}).narrow(0, 0, size);
  }

  kernels::Int8Kernels kernels_ = kernels::int8_kernels();
};

// If `block` is 0, the chunk is one block.
class AffineCodec final : public Codec {
 public:
  AffineCodec(std::string name, int64_t block, CodecPath path)
      : Codec(std::move(name), block > 0 ? block : kCacheLine, path), block_(block) {}
  bool takes_residual() const override { return true; }

 private:
  int64_t block_for(int64_t elements) const { return block_ > 0 ? block_ : elements; }

  int64_t header_bytes(int64_t elements) const override {
    const int64_t blocks = block_ > 0 ? blocks_in(elements, block_) : 1;
    return blocks * static_cast<int64_t>(sizeof(kernels::AffineHeader));
  }
  int64_t code_bytes(int64_t elements) const override { return elements; }
  int64_t piece() const override { return 2 * block_; }

  void encode_kernel(std::span<const float> values, float scale, std::span<float> residual,
                     Bytes headers, Bytes codes) const override {
    const int64_t block = block_for(values.size());
    const std::size_t blocks = blocks_in(values.size(), block);
    kernels_.encode(values, scale, residual, block,
                    {reinterpret_cast<kernels::AffineHeader*>(headers.data()), blocks},
                    {codes.data(), values.size()});
  }
  void decode_kernel(ConstBytes headers, ConstBytes codes, std::span<float> out,
                     bool add) const override {
    const int64_t block = block_for(out.size());
    const std::size_t blocks = blocks_in(out.size(), block);
    const auto decode = add ? kernels_.decode_add : kernels_.decode;
    decode({reinterpret_cast<const kernels::AffineHeader*>(headers.data()), blocks}, block,
           {codes.data(), out.size()}, out);
  }
  // Freed before it is used, in the order of the stream: nobody else gets it sooner.
  static at::Tensor scratch_on(const OnCuda& cuda) {
    return at::empty({static_cast<int64_t>(kernels::kAffineScratchBytes)},
                     at::TensorOptions(at::kByte).device(cuda.device));
  }
  int encode_cuda(const OnCuda& cuda, std::span<const float> values, float scale,
                  std::span<float> residual, Bytes headers, Bytes codes) const override {
    auto* header = reinterpret_cast<kernels::AffineHeader*>(headers.data());
    if (block_ > 0) {
      return cuda.kernels.affine_encode(values.data(), scale, residual.data(), header,
                                        codes.data(), values.size(), cuda.stream);
    }
    return cuda.kernels.affine_whole_encode(
        values.data(), scale, residual.data(), header, codes.data(), values.size(),
        scratch_on(cuda).mutable_data_ptr(), cuda.stream);
  }
  int decode_cuda(const OnCuda& cuda, ConstBytes headers, ConstBytes codes,
                  std::span<float> out, bool add) const override {
    const auto decode =
        block_ > 0 ? cuda.kernels.affine_decode : cuda.kernels.affine_whole_decode;
    return decode(reinterpret_cast<const kernels::AffineHeader*>(headers.data()),
                  codes.data(), out.data(), out.size(), add, cuda.stream);
  }
  int reduce_cuda(const OnCuda& cuda, const kernels::Messages& messages,
                  const kernels::OwnerStep& reduction) const override {
    if (block_ > 0) return cuda.kernels.reduce_affine(messages, reduction, cuda.stream);
    return cuda.kernels.reduce_affine_whole(
        messages, reduction, scratch_on(cuda).mutable_data_ptr(), cuda.stream);
  }
  void encode_aten(const at::Tensor& values, float scale, const at::Tensor& residual,
                   const at::Tensor& headers, const at::Tensor& codes) const override {
    const int64_t block = block_for(values.numel());
    const at::Tensor p = blocks::rows_of(values, scale, residual, block);
    const blocks::Rows rows = blocks::encode_affine(p);
    store(rows, headers, codes, values.numel());
    update_residual(rows, p, residual);
  }
  at::Tensor decode_aten(const at::Tensor& headers, const at::Tensor& codes,
                         int64_t size) const override {
    const UsedRows used = used_rows(headers, codes, 2, size, block_for(size), at::kByte);
    return blocks::decode_affine(used.params, used.codes).view({-1}).narrow(0, 0, size);
  }

  int64_t block_;
  kernels::AffineKernels kernels_ = kernels::affine_kernels();
};

}  // namespace

std::unique_ptr<Codec> make_int8_codec(CodecPath path) {
  return std::make_unique<Int8Codec>(path);
}
std::unique_ptr<Codec> make_affine_block_codec(CodecPath path) {
  return std::make_unique<AffineCodec>("affine_block", kAffineBlock, path);
}
std::unique_ptr<Codec> make_affine_tensor_codec(CodecPath path) {
  return std::make_unique<AffineCodec>("affine_tensor", 0, path);
}

}  // namespace brigade
