#include "hooks/int8.h"

#include "codec/codecs.h"
#include "exchange/two_phase.h"
#include "hooks/error_memory.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

class Int8Hook : public Hook {
 public:
  std::string name() const override { return "int8"; }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor error = comm.size() > 1 ? errors_.of(bucket) : at::Tensor();
    FloatValues values(bucket.buffer());
    co_await exchange_.all_reduce(values.values(), error, comm);
    co_return values.give_back();
  }

  HookState state() const override {
    HookState state;
    errors_.save(state);
    return state;
  }
  void load_state(const HookState& state) override { errors_.load(state); }
  void reset() override { errors_ = {}; }

 private:
  TwoPhase exchange_{make_int8_codec()};
  ErrorMemory errors_;
};

}  // namespace

std::shared_ptr<Hook> make_int8() { return std::make_shared<Int8Hook>(); }

}  // namespace brigade
