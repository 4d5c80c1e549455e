#include "codec/codec.h"
#include "exchange/two_phase.h"
#include "hooks/factories.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

class QuantizeHook : public Hook {
 public:
  QuantizeHook(std::string name, std::unique_ptr<Codec> codec, bool flat)
      : name_(std::move(name)), flat_(flat), exchange_(std::move(codec), flat) {}
  std::string name() const override { return name_; }
  std::string fingerprint() const override { return name_ + (flat_ ? ":flat=1" : ""); }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    FloatValues values(bucket.buffer());
    co_await exchange_.all_reduce(values.values(), Residuals(), comm);
    co_return values.give_back();
  }

 private:
  std::string name_;
  bool flat_;
  TwoPhase exchange_;
};

}  // namespace

std::shared_ptr<Hook> make_quantize_per_tensor(bool flat) {
  return std::make_shared<QuantizeHook>("quantize_per_tensor", make_affine_tensor_codec(),
                                        flat);
}
std::shared_ptr<Hook> make_quantize_per_channel(bool flat) {
  return std::make_shared<QuantizeHook>("quantize_per_channel", make_affine_block_codec(),
                                        flat);
}

}  // namespace brigade
