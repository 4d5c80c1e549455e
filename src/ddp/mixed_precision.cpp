#include "brigade/mixed_precision.h"

#include <ATen/ATen.h>

#include "ddp/low_precision.h"

namespace brigade {
namespace {

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return "fp16";
    case at::kBFloat16:
      return "bf16";
    case at::kFloat:
      return "fp32";
    case at::kDouble:
      return "fp64";
    default:
      return nullptr;
  }
}

template <class Visitor>
void for_each_field(const MixedPrecision& dtypes, Visitor&& visit) {
  visit("param", dtypes.param_dtype);
  visit("reduce", dtypes.reduce_dtype);
  visit("buffer", dtypes.buffer_dtype);
}

Task<at::Tensor> average(Bucket bucket, Comm& comm) {
  at::Tensor mean = bucket.buffer();
  if (comm.size() > 1) {
    mean.div_(comm.size());  // first, so that no sum overflows
    co_await comm.all_reduce(mean);
  }
  co_return mean;
}

class ReduceIn : public Hook {
 public:
  ReduceIn(at::ScalarType dtype, std::shared_ptr<Hook> inner)
      : dtype_(dtype), inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name() + " in " + name_of(dtype_); }
  std::string fingerprint() const override {
    return inner_->fingerprint() + " in " + name_of(dtype_);
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
};

}  // namespace

std::string MixedPrecision::describe() const {
  std::string text;
  for_each_field(*this, [&](const char* field, const auto& dtype) {
    if (!dtype) return;
    const char* name = name_of(*dtype);
    text += std::string(text.empty() ? "" : ", ") + field + " " +
            (name ? name : c10::toString(*dtype));
  });
  return text;
}

void check(const MixedPrecision& dtypes) {
  bool any = false;
  for_each_field(dtypes, [&](const char* field, const auto& dtype) {
    if (!dtype) return;
    any = true;
    if (!name_of(*dtype)) {
      throw ConfigError(c10::str("mixed_precision.", field, "_dtype is ", *dtype,
                                 ", but must be at::kHalf, at::kBFloat16, at::kFloat or "
                                 "at::kDouble"));
    }
  });
  if (!any) {
    throw ConfigError(
        "mixed_precision sets no dtype; set param_dtype, for instance to at::kBFloat16, or "
        "leave mixed_precision out");
  }
}

std::shared_ptr<Hook> reduce_in(at::ScalarType dtype, std::shared_ptr<Hook> inner) {
  if (!inner) inner = make_hook("allreduce", average);
  return std::make_shared<ReduceIn>(dtype, std::move(inner));
}

}  // namespace brigade
