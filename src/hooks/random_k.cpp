// Vocabulary. The bucket is cut into *strata* of nearly equal length, as many as values are
// sent. From each stratum one value is drawn, by a hash of seed, step, bucket and stratum.
// So all values have the same probability, and memory is read in order.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "brigade/compose_hooks.h"
#include "hooks/error_memory.h"
#include "hooks/factories.h"
#include "hooks/float_values.h"

namespace brigade {
namespace {

// The last steps of splitmix64.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// FNV-1a is the same on every machine. It decides what is drawn: with another hash a run
// resumed from a checkpoint would draw differently.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  return hash;
}

// Returns the indices of `count` of n values, rising. On a device, the host does not wait
// for the copy; its host memory is not reused before it is done.
at::Tensor draw(int64_t n, int64_t count, uint64_t key, c10::Device device) {
  at::Tensor places =
      at::empty({count}, at::TensorOptions(at::kLong).pinned_memory(!device.is_cpu()));
  auto* to = places.mutable_data_ptr<int64_t>();
  const auto begin = [&](int64_t stratum) {
    return static_cast<int64_t>(static_cast<__int128>(stratum) * n / count);
  };
  for (int64_t stratum = 0; stratum < count; ++stratum) {
    const auto length = static_cast<uint64_t>(begin(stratum + 1) - begin(stratum));
    const uint64_t random =
        mixed(key + 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(stratum));
    to[stratum] = begin(stratum) + static_cast<int64_t>(random % length);
  }
  return places.to(device, /*non_blocking=*/true);
}

class RandomK : public Hook, public RevertibleHook {
 public:
  RandomK(double ratio, uint64_t seed) : ratio_(ratio), seed_(seed) {}
  std::string name() const override { return "randomk"; }
  std::string fingerprint() const override {
    return c10::str("randomk:ratio=", ratio_, ",seed=", seed_);
  }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

  HookState state() const override {
    HookState state;
    errors_.save(state);
    state.values["step"] = std::to_string(step_);
    return state;
  }
  void load_state(const HookState& state) override {
    errors_.load(state);
    const auto found = state.values.find("step");
    if (found == state.values.end())
      throw ConfigError("randomk: the state has no 'step'; is it another hook's?");
    step_ = std::stoll(found->second);
  }
  void reset() override {
    errors_ = {};
    step_ = 0;
  }
  bool commit() override {
    errors_.commit();
    committed_step_ = step_;
    return true;
  }
  void revert() override {
    errors_.revert();
    step_ = committed_step_;
  }

 private:
  const double ratio_;
  const uint64_t seed_;
  int64_t step_ = 0;  // counted at the last bucket, before the first co_await
  int64_t committed_step_ = 0;
  ErrorMemory errors_;
};

// Returns 0, or NaN if not all values are finite.
at::Tensor flaw_of(const at::Tensor& values) {
  const auto [least, most] = at::aminmax(values);
  return (least * 0 + most * 0).view({1});
}

Task<at::Tensor> RandomK::reduce(Bucket bucket, Comm& comm) {
  const int64_t n = bucket.buffer().numel();
  const uint64_t key =
      mixed(seed_ + mixed(hash_of(bucket.names().front()) + static_cast<uint64_t>(step_)));
  if (bucket.is_last()) ++step_;
  if (comm.size() == 1 || n == 0) co_return bucket.buffer();
  FloatValues floats(bucket.buffer());
  const Residuals residuals = errors_.of(bucket);
  at::Tensor values = floats.values(), error = residuals.next;
  const auto count = static_cast<int64_t>(std::ceil(ratio_ * static_cast<double>(n)));
  const at::Tensor places = draw(n, count, key, values.device());

  // The error becomes all that is still to be sent; those sent now are cleared below.
  at::add_out(error, residuals.last, values);
  at::Tensor message = at::empty({count + 1}, values.options());
  at::Tensor sent = message.narrow(0, 0, count), flaw = message.narrow(0, count, 1);
  at::index_select_out(sent, error, 0, places);
  flaw.copy_(flaw_of(error));
  message.div_(comm.size());
  co_await comm.all_reduce(message);

  const at::Tensor whole = flaw == 0;
  if (values.is_cpu() && whole.item<bool>()) {
    error.index_fill_(0, places, 0);
    values.zero_().index_copy_(0, places, sent);
  } else {
    // A step that is not finite shows on all ranks, and its effect on the error is undone.
    const at::Tensor before = (error - values).nan_to_num(0, 0, 0);
    error.copy_(at::where(whole, error.index_fill(0, places, 0), before));
    values.copy_(flaw.expand_as(values)).index_add_(0, places, sent);
  }
  co_return floats.give_back();
}

}  // namespace

std::shared_ptr<Hook> make_random_k(double ratio, uint64_t seed) {
  check_ratio("randomk", ratio);
  return std::make_shared<RandomK>(ratio, seed);
}

}  // namespace brigade
