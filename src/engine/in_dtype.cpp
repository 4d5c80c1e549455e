#include "engine/in_dtype.h"

#include <ATen/ATen.h>

namespace brigade::engine {
namespace {

class InDtype : public Hook {
 public:
  InDtype(at::ScalarType dtype, std::shared_ptr<Hook> inner, std::string before,
          std::string after)
      : dtype_(dtype),
        inner_(std::move(inner)),
        before_(std::move(before)),
        after_(std::move(after)) {}

  std::string name() const override { return before_ + inner_->name() + after_; }
  std::string fingerprint() const override {
    return before_ + inner_->fingerprint() + after_;
  }
  HookState state() const override { return inner_->state(); }
  void load_state(const HookState& state) override { inner_->load_state(state); }
  void reset() override { inner_->reset(); }
  void begin_pass(const HookPass& pass) override { inner_->begin_pass(pass); }
  bool takes_sparse() const override { return inner_->takes_sparse(); }
  void check_dtype(at::ScalarType dtype) const override {
    inner_->check_dtype(at::isFloatingType(dtype) ? dtype_ : dtype);
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor buffer = bucket.buffer();
    const at::ScalarType own = buffer.scalar_type();
    if (buffer.is_sparse() || own == dtype_ || !at::isFloatingType(own)) {
      co_return co_await inner_->reduce(bucket, comm);
    }
    bucket.set_buffer(buffer.to(dtype_));
    at::Tensor result = co_await inner_->reduce(bucket, comm);
    co_return buffer.copy_(result);
  }

 private:
  const at::ScalarType dtype_;
  const std::shared_ptr<Hook> inner_;
  const std::string before_;
  const std::string after_;
};

}  // namespace

std::shared_ptr<Hook> in_dtype(at::ScalarType dtype, std::shared_ptr<Hook> inner,
                               std::string before, std::string after) {
  return std::make_shared<InDtype>(dtype, std::move(inner), std::move(before),
                                   std::move(after));
}

}  // namespace brigade::engine
