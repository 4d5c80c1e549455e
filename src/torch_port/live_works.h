// The collectives under way in groups that can be aborted, so that all can be failed at
// once.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace brigade::torch_port {

// Stands for a collective of Gloo. Ends with it, or when it is aborted. Its errors have our
// types.
//
// When a connection closes, Gloo fails the messages in its queue but forgets one that is
// half sent or received, so that message's collective waits for its whole time limit.
// Nothing wakes it, so waiting callers need a way out.
class LiveWork : public c10d::Work {
 public:
  explicit LiveWork(c10::intrusive_ptr<c10d::Work> inner);
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  // Only the first call has an effect. A null `error` means success.
  void end(std::exception_ptr error, const c10::IValue& value = {});

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> ended_{false};
};

// Thread-safe.
class LiveWorks : public std::enable_shared_from_this<LiveWorks> {
 public:
  // Returns a work to wait for instead of `inner`, a collective on CPU tensors.
  c10::intrusive_ptr<c10d::Work> follow(c10::intrusive_ptr<c10d::Work> inner);
  // Fails all works under way at once, and all later ones.
  void fail_all(const std::string& why);

 private:
  std::mutex mutex_;
  std::string why_;  // empty: fail_all() was not called
  uint64_t next_ = 0;
  std::map<uint64_t, c10::intrusive_ptr<LiveWork>> under_way_;
};

}  // namespace brigade::torch_port
