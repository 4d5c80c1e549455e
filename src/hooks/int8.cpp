#include "hooks/int8.h"

#include "brigade/revertible_hook.h"
#include "codec/codecs.h"
#include "exchange/two_phase.h"
#include "hooks/error_memory.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

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
    Feedback error;
    bool moved = false;
    if (comm.size() > 1) {
      division_ = exchange_.division(comm);
      error = errors_.of(bucket);
      moved = errors_.moved(bucket, division_);
    }
    FloatValues values(bucket.buffer());
    co_await exchange_.all_reduce(values.values(), error, comm, moved);
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
  void take_back() override { errors_.take_back(); }

 private:
  const std::string name_;
  std::string fingerprint_;
  TwoPhase exchange_;
  ErrorMemory errors_;
  // Of the last step. A checkpoint has it for its reader: whatever it is, errors that are
  // loaded count where they are.
  std::string division_;
};

}  // namespace

std::shared_ptr<Hook> make_int8(bool flat) {
  return std::make_shared<FeedbackHook>(make_int8_codec(), flat, "");
}
std::shared_ptr<Hook> make_int4(bool flat) {
  return std::make_shared<FeedbackHook>(make_int4_codec(), flat, "");
}
std::shared_ptr<Hook> make_with_feedback(std::shared_ptr<const Codec> codec, bool flat,
                                         std::string options) {
  return std::make_shared<FeedbackHook>(std::move(codec), flat, std::move(options));
}

}  // namespace brigade
