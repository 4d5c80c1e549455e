#include "hooks/int8.h"

#include "codec/codecs.h"
#include "exchange/two_phase.h"
#include "hooks/error_memory.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

// Any codec that takes a residual.
class QuantizingHook : public Hook {
 public:
  QuantizingHook(std::shared_ptr<const Codec> codec, bool flat)
      : name_(codec->name()), exchange_(std::move(codec), flat), flat_(flat) {}
  std::string name() const override { return name_; }
  std::string fingerprint() const override { return name_ + (flat_ ? ":flat=1" : ""); }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor error;
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

 private:
  const std::string name_;
  TwoPhase exchange_;
  const bool flat_;
  ErrorMemory errors_;
  // Of the last step. A checkpoint has it for its reader: whatever it is, errors that are
  // loaded count where they are.
  std::string division_;
};

}  // namespace

std::shared_ptr<Hook> make_int8(bool flat) {
  return std::make_shared<QuantizingHook>(make_int8_codec(), flat);
}
std::shared_ptr<Hook> make_int4(bool flat) {
  return std::make_shared<QuantizingHook>(make_int4_codec(), flat);
}

}  // namespace brigade
