#include <ATen/ATen.h>

#include <bit>

#include "brigade/compose_hooks.h"

namespace brigade {

HookWrapper::HookWrapper(std::shared_ptr<Hook> inner) : inner_(std::move(inner)) {
  if (!inner_) {
    throw ConfigError(
        "a hook around another got none; make_hook(\"allreduce\") is the plain one");
  }
}

std::string HookWrapper::fingerprint() const {
  return name() + " around " + inner_->fingerprint();
}
void HookWrapper::set_parameters(std::span<const std::string> names) {
  inner_->set_parameters(names);
}
void HookWrapper::begin_pass(const HookPass& pass) { inner_->begin_pass(pass); }
bool HookWrapper::takes_sparse() const { return inner_->takes_sparse(); }
HookState HookWrapper::state() const { return inner_->state(); }
void HookWrapper::load_state(const HookState& state) { inner_->load_state(state); }
void HookWrapper::reset() { inner_->reset(); }
void HookWrapper::check_dtype(at::ScalarType dtype) const { inner_->check_dtype(dtype); }
std::vector<std::string> HookWrapper::history() const { return inner_->history(); }

Task<at::Tensor> HookWrapper::reduce_inner(Bucket bucket, Comm& comm) const {
  if (bucket.buffer().is_sparse() && !inner_->takes_sparse()) {
    return average(std::move(bucket), comm);
  }
  return inner_->reduce(std::move(bucket), comm);
}

Task<HookWrapper::Undivided> HookWrapper::reduce_inner_undivided(Bucket bucket,
                                                                 Comm& comm) const {
  Undivided reduced;
  reduced.result = bucket.buffer();
  const auto ranks = static_cast<unsigned>(comm.size());
  const bool wide = reduced.result.scalar_type() == at::kFloat ||
                    reduced.result.scalar_type() == at::kDouble;
  if (ranks > 1 && std::has_single_bit(ranks) && wide && reduced.result.is_cpu() &&
      !reduced.result.is_sparse() && inner_->is_plain_mean()) {
    co_await comm.all_reduce(reduced.result);
    reduced.scale = 1.0 / ranks;
  } else {
    reduced.result = co_await reduce_inner(bucket, comm);
  }
  co_return reduced;
}

namespace {

class InDtype : public HookWrapper, public RevertibleHook {
 public:
  InDtype(at::ScalarType dtype, std::shared_ptr<Hook> inner, std::string before,
          std::string after)
      : HookWrapper(std::move(inner)),
        dtype_(dtype),
        before_(std::move(before)),
        after_(std::move(after)) {}

  std::string name() const override { return before_ + inner().name() + after_; }
  std::string fingerprint() const override {
    return before_ + inner().fingerprint() + after_;
  }
  void check_dtype(at::ScalarType dtype) const override {
    inner().check_dtype(at::isFloatingType(dtype) ? dtype_ : dtype);
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor buffer = bucket.buffer();
    const at::ScalarType own = buffer.scalar_type();
    if (buffer.is_sparse() || own == dtype_ || !at::isFloatingType(own)) {
      co_return co_await reduce_inner(bucket, comm);
    }
    bucket.set_buffer(buffer.to(dtype_));
    at::Tensor result = co_await reduce_inner(bucket, comm);
    co_return buffer.copy_(result);
  }
  bool commit() override { return commit_hook(inner()); }
  void take_back() override { take_back_hook(inner()); }

 private:
  const at::ScalarType dtype_;
  const std::string before_;
  const std::string after_;
};

}  // namespace

std::shared_ptr<Hook> in_dtype(at::ScalarType dtype, std::shared_ptr<Hook> inner,
                               std::string before, std::string after) {
  return std::make_shared<InDtype>(dtype, std::move(inner), std::move(before),
                                   std::move(after));
}

}  // namespace brigade
