#include "torch_port/live_works.h"

#include "torch_port/typed_wait.h"

namespace brigade::torch_port {
namespace {

std::exception_ptr error_of(const std::string& why) {
  return std::make_exception_ptr(base::AbortedError("the group was aborted: " + why));
}

}  // namespace

LiveWork::LiveWork(c10::intrusive_ptr<c10d::Work> inner)
    : Work(-1, inner->retrieveOpType()),
      inner_(std::move(inner)),
      future_(inner_->getFuture()->createInstance(inner_->getFuture()->elementType())) {}

void LiveWork::end(std::exception_ptr error, const c10::IValue& value) {
  if (ended_.exchange(true)) return;
  // The future comes first: waiting callers may read it next.
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(value);
  }
  finish(error);
}

c10::intrusive_ptr<c10d::Work> LiveWorks::follow(c10::intrusive_ptr<c10d::Work> inner) {
  auto future = inner->getFuture();
  auto work = c10::make_intrusive<LiveWork>(std::move(inner));
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = next_++;
    if (why_.empty()) under_way_.emplace(number, work);
  }
  future->addCallback([self = weak_from_this(), work, number](c10::ivalue::Future& done) {
    if (auto works = self.lock()) {
      std::lock_guard lock(works->mutex_);
      works->under_way_.erase(number);
    }
    work->end(typed(done.exception_ptr()), done.hasError() ? c10::IValue() : done.value());
  });
  std::string why;
  {
    std::lock_guard lock(mutex_);
    why = why_;
  }
  if (!why.empty()) work->end(error_of(why));
  return work;
}

void LiveWorks::fail_all(const std::string& why) {
  std::map<uint64_t, c10::intrusive_ptr<LiveWork>> left;
  {
    std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "no reason was given" : why;
    left.swap(under_way_);
  }
  for (const auto& [number, work] : left) work->end(error_of(why));
}

}  // namespace brigade::torch_port
