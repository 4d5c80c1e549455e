#include <ATen/ATen.h>

#include "brigade/hooks/registry.h"

namespace brigade {
namespace {

class CompressWrapper : public Hook {
 public:
  CompressWrapper(std::string name, at::ScalarType dtype, std::shared_ptr<Hook> inner)
      : name_(std::move(name)), dtype_(dtype), inner_(std::move(inner)) {}

  std::string name() const override { return name_ + "+" + inner_->name(); }
  std::string fingerprint() const override { return name_ + "+" + inner_->fingerprint(); }
  HookState state() const override { return inner_->state(); }
  void load_state(const HookState& state) override { inner_->load_state(state); }
  void reset() override { inner_->reset(); }
  void begin_pass(const HookPass& pass) override { inner_->begin_pass(pass); }
  bool takes_sparse() const override { return inner_->takes_sparse(); }
  void check_dtype(at::ScalarType) const override { inner_->check_dtype(dtype_); }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor buffer = bucket.buffer();
    if (buffer.is_sparse()) co_return co_await inner_->reduce(bucket, comm);
    bucket.set_buffer(buffer.to(dtype_));
    at::Tensor result = co_await inner_->reduce(bucket, comm);
    co_return buffer.copy_(result);
  }

 private:
  std::string name_;
  at::ScalarType dtype_;
  std::shared_ptr<Hook> inner_;
};

}  // namespace

std::shared_ptr<Hook> fp16_compress_wrapper(std::shared_ptr<Hook> inner) {
  return std::make_shared<CompressWrapper>("fp16", at::kHalf, std::move(inner));
}
std::shared_ptr<Hook> bf16_compress_wrapper(std::shared_ptr<Hook> inner) {
  return std::make_shared<CompressWrapper>("bf16", at::kBFloat16, std::move(inner));
}

}  // namespace brigade
