#include <ATen/ATen.h>

#include "codec/codec.h"
#include "codec/cuda_module.h"
#include "exchange/two_phase.h"
#include "hooks/factories.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

bool has_kernels(const at::Tensor& buffer) {
  return buffer.is_cuda() && buffer.scalar_type() == at::kFloat && buffer.is_contiguous() &&
         cuda_kernels(buffer.device());
}

class HalfHook : public Hook {
 public:
  HalfHook(std::string name, at::ScalarType dtype, std::unique_ptr<Codec> codec, bool flat)
      : name_(std::move(name)),
        dtype_(dtype),
        flat_(flat),
        exchange_(std::move(codec), flat) {}
  std::string name() const override { return name_; }
  std::string fingerprint() const override { return name_ + (flat_ ? ":flat=1" : ""); }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor buffer = bucket.buffer();
    if (comm.works_on_device()) {
      // NCCL's own all-reduce adds halves on the wire, and knows the hosts. Dividing first
      // keeps the sum in range.
      at::Tensor half = narrowed(buffer, comm.size());
      co_await comm.all_reduce(half);
      widen(half, buffer);
      co_return buffer;
    }
    FloatValues values(buffer);
    co_await exchange_.all_reduce(values.values(), Residuals(), comm);
    co_return values.give_back();
  }

 private:
  // Returns buffer / divisor. The kernel multiplies by 1 / divisor. ATen does so too on
  // CUDA, with the same bits.
  at::Tensor narrowed(const at::Tensor& buffer, int divisor) const {
    if (!has_kernels(buffer)) return buffer.div(divisor).to(dtype_);
    at::Tensor half = at::empty_like(buffer, dtype_);
    on_cuda("hook " + name_, buffer, [&](const OnCuda& on) {
      return on.kernels.narrow(kind_, buffer.const_data_ptr<float>(),
                               1.0F / static_cast<float>(divisor),
                               static_cast<uint16_t*>(half.mutable_data_ptr()),
                               static_cast<size_t>(half.numel()), on.stream);
    });
    return half;
  }
  void widen(const at::Tensor& half, at::Tensor buffer) const {
    if (!has_kernels(buffer)) return static_cast<void>(buffer.copy_(half));
    on_cuda("hook " + name_, buffer, [&](const OnCuda& on) {
      return on.kernels.widen(kind_, static_cast<const uint16_t*>(half.const_data_ptr()),
                              buffer.mutable_data_ptr<float>(),
                              static_cast<size_t>(half.numel()), false, on.stream);
    });
  }

  std::string name_;
  at::ScalarType dtype_;
  kernels::Half kind_ = dtype_ == at::kHalf ? kernels::Half::fp16 : kernels::Half::bf16;
  bool flat_;
  TwoPhase exchange_;
};

}  // namespace

std::shared_ptr<Hook> make_fp16(bool flat) {
  return std::make_shared<HalfHook>("fp16", at::kHalf, make_fp16_codec(), flat);
}
std::shared_ptr<Hook> make_bf16(bool flat) {
  return std::make_shared<HalfHook>("bf16", at::kBFloat16, make_bf16_codec(), flat);
}

}  // namespace brigade
