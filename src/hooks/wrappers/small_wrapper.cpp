// Vocabulary. A gradient is *small* if it is a vector, or has fewer values than a limit.
#include <ATen/ATen.h>

#include "brigade/compose_hooks.h"
#include "hooks/factories.h"

namespace brigade {
namespace {

// Holds small gradients as one tensor of their own, and puts zeros in their place in the
// bucket. The rest need not be copied; neither affects the other's precision or error.
class SmallGradients {
 public:
  SmallGradients(const Bucket& bucket, int64_t below) {
    if (bucket.buffer().is_sparse()) return;
    int64_t begin = 0;
    all_ = true;
    for (size_t place = 0; place < bucket.parameters().size(); ++place) {
      const at::Tensor& parameter = bucket.parameters()[place];
      const int64_t length = bucket.length(place);
      if (parameter.dim() < 2 || length < below) {
        runs_.emplace_back(begin, length);
      } else {
        all_ = false;
      }
      begin += length;
    }
  }
  bool none() const { return runs_.empty(); }
  bool all() const { return all_; }

  at::Tensor take_from(const at::Tensor& buffer) const {
    std::vector<at::Tensor> gradients;
    for (const auto& [begin, length] : runs_)
      gradients.push_back(buffer.narrow(0, begin, length));
    at::Tensor values = at::cat(gradients);
    for (at::Tensor& gradient : gradients) gradient.zero_();
    return values;
  }
  void put_into(const at::Tensor& buffer, const at::Tensor& values) const {
    int64_t taken = 0;
    for (const auto& [begin, length] : runs_) {
      buffer.narrow(0, begin, length).copy_(values.narrow(0, taken, length));
      taken += length;
    }
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> runs_;  // begin and length in the buffer
  bool all_ = false;
};

class SmallHook : public HookWrapper, public RevertibleHook {
 public:
  SmallHook(std::shared_ptr<Hook> inner, int64_t below, std::string before,
            std::string after)
      : HookWrapper(std::move(inner)),
        below_(below),
        before_(std::move(before)),
        after_(std::move(after)) {}
  std::string name() const override { return before_ + inner().name(); }
  std::string fingerprint() const override {
    return before_ + inner().fingerprint() + after_;
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    sequence_.pass(bucket);
    const SmallGradients small(bucket, below_);
    if (small.all()) co_return co_await average(bucket, comm);
    Bucket seen = sequence_.next(bucket);
    if (small.none() || comm.size() == 1) co_return co_await reduce_inner(seen, comm);

    at::Tensor exact = small.take_from(bucket.buffer());
    at::Tensor result;
    Comm::Body body = [&](int index, Comm& lane) -> Task<void> {
      if (index == 0) {
        exact.div_(lane.size());
        co_await lane.all_reduce(exact);
      } else {
        result = co_await reduce_inner(seen, lane);
      }
    };
    co_await comm.split(2, body);
    small.put_into(result, exact);
    co_return result;
  }

  bool commit() override { return commit_hook(inner()); }
  void revert() override { revert_hook(inner()); }

 private:
  const int64_t below_;
  const std::string before_;
  const std::string after_;
  BucketSequence sequence_;
};

}  // namespace

std::shared_ptr<Hook> exact_small_wrapper(std::shared_ptr<Hook> inner, int64_t below) {
  const std::string size = below == kSmall ? "" : "(" + std::to_string(below) + ")";
  return std::make_shared<SmallHook>(std::move(inner), below, "small" + size + "+", "");
}

std::shared_ptr<Hook> with_small_option(std::shared_ptr<Hook> hook, int64_t below) {
  if (below == 0) return hook;
  const bool first = hook->fingerprint().find(':') == std::string::npos;
  return std::make_shared<SmallHook>(
      std::move(hook), below, "", (first ? ":small=" : ",small=") + std::to_string(below));
}

}  // namespace brigade
