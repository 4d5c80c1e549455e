#include <ATen/ATen.h>

#include "brigade/measuring_hook.h"
#include "codec/codecs.h"
#include "exchange/two_phase.h"
#include "hooks/dense.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

class HalfHook : public MeasuringHook {
 public:
  HalfHook(std::string name, at::ScalarType dtype, std::unique_ptr<Codec> codec, bool flat)
      : name_(std::move(name)),
        dtype_(dtype),
        flat_(flat),
        exchange_(std::move(codec), flat) {}
  std::string name() const override { return name_; }
  std::string fingerprint() const override { return name_ + (flat_ ? ":flat=1" : ""); }

  Task<at::Tensor> reduce_and_measure(Bucket bucket, Comm& comm,
                                      std::optional<double>* squares) override {
    at::Tensor buffer = bucket.buffer();
    if (comm.works_on_device()) {
      // NCCL's own all-reduce adds halves on the wire, and knows the hosts; dividing first
      // keeps it in range.
      at::Tensor half = buffer.div(comm.size()).to(dtype_);
      co_await comm.all_reduce(half);
      co_return buffer.copy_(half);
    }
    FloatValues values(buffer);
    co_await exchange_.all_reduce(values.values(), at::Tensor(), comm, false,
                                  values.measured(squares));
    co_return values.give_back();
  }

 private:
  std::string name_;
  at::ScalarType dtype_;
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
