#include <ATen/ATen.h>

#include "exchange/fixed_order.h"
#include "hooks/factories.h"

namespace brigade {
namespace {

class AllReduce : public Hook {
 public:
  std::string name() const override { return "allreduce"; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return average(std::move(bucket), comm);
  }
  bool is_plain_mean() const override { return true; }
};

Task<at::Tensor> noop(Bucket bucket, Comm&) { co_return bucket.buffer(); }

}  // namespace

std::shared_ptr<Hook> make_allreduce() { return std::make_shared<AllReduce>(); }
std::shared_ptr<Hook> make_noop() { return make_hook("noop", noop); }

}  // namespace brigade

// Means whose bits do not depend on bucket size, number of segments or backend.

namespace brigade {
namespace {

class Fixed : public Hook {
 public:
  std::string name() const override { return "fixed"; }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor buffer = bucket.buffer();
    // Half types are summed in float32.
    at::Tensor values = buffer.element_size() < 4 ? buffer.to(at::kFloat) : buffer;
    co_await exchange_.mean(values, comm);
    co_return values.is_same(buffer) ? buffer : buffer.copy_(values);
  }

 private:
  FixedOrder exchange_;
};

}  // namespace

std::shared_ptr<Hook> make_fixed() { return std::make_shared<Fixed>(); }

}  // namespace brigade
