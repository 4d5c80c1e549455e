// The whole bucket as one square matrix, filled up with zeros: M ≈ P Qᵀ.
#include <ATen/ATen.h>

#include <cmath>

#include "hooks/error_memory.h"
#include "hooks/power_sgd_core.h"

namespace brigade {
namespace {

// What is kept of one bucket; see power_sgd.cpp.
struct Square {
  at::Tensor q;
  at::Tensor spare;
};

class BatchedPowerSGD : public PowerSGDBase {
 public:
  explicit BatchedPowerSGD(PowerSGDOptions options)
      : PowerSGDBase("batched_powersgd", options) {}

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

  HookState state() const override {
    HookState state;
    save_base(state);
    errors_.save(state);
    for (const auto& [name, square] : squares_) {
      state.tensors["q." + name] = square.q.clone();
      state.tensors["spare." + name] = square.spare.clone();
    }
    return state;
  }
  void load_state(const HookState& state) override {
    load_base(state);
    errors_.load(state);
    squares_.clear();
    for (const auto& [key, tensor] : state.tensors) {
      if (key.rfind("q.", 0) == 0) squares_[key.substr(2)].q = tensor.clone();
      if (key.rfind("spare.", 0) == 0) squares_[key.substr(6)].spare = tensor.clone();
    }
  }
  void reset() override {
    reset_base();
    errors_ = {};
    squares_.clear();
  }

 private:
  ErrorMemory errors_;
  std::map<std::string, Square> squares_;  // by the bucket's first parameter
};

Task<at::Tensor> BatchedPowerSGD::reduce(Bucket bucket, Comm& comm) {
  if (!compresses(bucket)) {
    co_return co_await average(bucket, comm);
  }
  const at::Tensor buffer = bucket.buffer();
  const int64_t n = buffer.numel();
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(n))));
  const int64_t rank = std::min(side, options_.matrix_approximation_rank);
  const auto options = buffer.options().dtype(compute_dtype(buffer.scalar_type()));
  count(bucket, n, 2 * side * rank);

  at::Tensor error = options_.use_error_feedback ? errors_.of(bucket) : at::Tensor();
  at::Tensor flat = at::zeros(side * side, options);
  flat.narrow(0, 0, n).copy_(buffer);
  if (error.defined()) flat.narrow(0, 0, n).add_(error);
  at::Tensor m = flat.view({1, side, side});

  // The map is used before the first co_await only; the code after it uses the tensor.
  Square& square = squares_[bucket.names().front()];
  const bool warm =
      options_.warm_start && square.spare.defined() && square.spare.size(1) == side;
  if (!warm) {
    square.spare = next_start({1, side, rank}, options);
    square.q = square.spare.clone();
  }
  at::Tensor memory = square.q;
  at::Tensor q = revive(memory, square.spare);
  orthogonalize(q, options_.orthogonalization_epsilon);

  at::Tensor p = at::bmm(m, q).div_(comm.size());
  co_await comm.all_reduce(p);
  orthogonalize(p, options_.orthogonalization_epsilon);
  q = at::bmm(m.transpose(1, 2), p).div_(comm.size());
  co_await comm.all_reduce(q);

  at::Tensor result = at::bmm(p, q.transpose(1, 2)).view({-1}).narrow(0, 0, n);
  const at::Tensor finite = at::isfinite(q.sum());
  if (error.defined()) error.copy_(keep(finite, flat.narrow(0, 0, n) - result, error));
  memory.copy_(keep(finite, q, memory));
  co_return buffer.copy_(result);
}

}  // namespace

std::shared_ptr<PowerSGDHook> make_batched_power_sgd(PowerSGDOptions options) {
  return std::make_shared<BatchedPowerSGD>(options);
}

}  // namespace brigade
