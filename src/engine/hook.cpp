#include "brigade/hook.h"

#include <ATen/ATen.h>

namespace brigade {
namespace {

class FunctionHook : public Hook {
 public:
  FunctionHook(std::string name, std::function<Task<at::Tensor>(Bucket, Comm&)> reduce)
      : name_(std::move(name)), reduce_(std::move(reduce)) {}
  std::string name() const override { return name_; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return reduce_(std::move(bucket), comm);
  }

 private:
  std::string name_;
  std::function<Task<at::Tensor>(Bucket, Comm&)> reduce_;
};

}  // namespace

std::shared_ptr<Hook> make_hook(std::string name,
                                std::function<Task<at::Tensor>(Bucket, Comm&)> reduce) {
  return std::make_shared<FunctionHook>(std::move(name), std::move(reduce));
}

Task<at::Tensor> average(Bucket bucket, Comm& comm) {
  at::Tensor mean = bucket.buffer();
  if (comm.size() == 1) co_return mean;
  // In place, a sparse tensor's values would overwrite the gradient's.
  if (mean.is_sparse()) {
    mean = mean.div(comm.size());
  } else {
    mean.div_(comm.size());
  }
  co_await comm.all_reduce(mean);
  co_return mean;
}

}  // namespace brigade
