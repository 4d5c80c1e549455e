#include <c10/util/StringUtil.h>

#include "brigade/compose_hooks.h"
#include "codec/codec.h"
#include "exchange/two_phase.h"
#include "hooks/error_memory.h"
#include "hooks/factories.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

// Adds what the codec loses to the next step's gradients.
class FeedbackHook : public Hook, public RevertibleHook {
 public:
  FeedbackHook(std::shared_ptr<const Codec> codec, bool flat, std::string options)
      : name_(codec->name()), exchange_(std::move(codec), flat) {
    if (flat) options += options.empty() ? "flat=1" : ",flat=1";
    fingerprint_ = name_ + (options.empty() ? "" : ":") + options;
  }
  std::string name() const override { return name_; }
  std::string fingerprint() const override { return fingerprint_; }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    Residuals residuals;
    if (comm.size() > 1) {
      division_ = exchange_.division(comm);
      residuals = errors_.of(bucket, division_);
    }
    FloatValues values(bucket.buffer());
    co_await exchange_.all_reduce(values.values(), residuals, comm);
    co_return values.give_back();
  }

  HookState state() const override {
    HookState state;
    errors_.save(state);
    if (!division_.empty()) state.values["own.division"] = division_;
    return state;
  }
  void load_state(const HookState& state) override { errors_.load(state); }
  void reset() override { errors_ = {}; }
  bool commit() override {
    errors_.commit();
    return true;
  }
  void revert() override { errors_.revert(); }

 private:
  const std::string name_;
  std::string fingerprint_;
  TwoPhase exchange_;
  ErrorMemory errors_;
  // The division of the last step. A checkpoint holds it for human readers only: loaded
  // errors are used where they are, whatever the division was.
  std::string division_;
};

}  // namespace

std::shared_ptr<Hook> make_int8(bool flat) {
  return std::make_shared<FeedbackHook>(make_int8_codec(), flat, "");
}
std::shared_ptr<Hook> make_int4(bool flat) {
  return std::make_shared<FeedbackHook>(make_int4_codec(), flat, "");
}
std::shared_ptr<Hook> make_top_k(double ratio, bool flat) {
  check_ratio("topk", ratio);
  return std::make_shared<FeedbackHook>(make_top_k_codec(ratio), flat,
                                        c10::str("ratio=", ratio));
}

}  // namespace brigade
