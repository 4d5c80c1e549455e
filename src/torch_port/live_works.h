// The collectives under way in groups that can be aborted: all of them can be failed at
// once.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace brigade::torch_port {

// Stands for a collective of Gloo's. Ends with it, or when it is given up. Its errors have
// types of ours.
//
// Gloo forgets a message that is half sent or half received when its connection closes: it
// fails what is queued behind, and the collective that the message belongs to waits for its
// whole time limit. Nothing wakes it, so that those who wait for it must be able to leave.
class LiveWork : public c10d::Work {
 public:
  explicit LiveWork(c10::intrusive_ptr<c10d::Work> inner);
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  // The first call counts. `error`: none: it has succeeded.
  void end(std::exception_ptr error, const c10::IValue& value = {});

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> ended_{false};
};

// Thread-safe.
class LiveWorks : public std::enable_shared_from_this<LiveWorks> {
 public:
  // What the caller may wait for instead of `inner`, a collective on CPU tensors.
  c10::intrusive_ptr<c10d::Work> follow(c10::intrusive_ptr<c10d::Work> inner);
  // All that are under way fail at once, and all that are to come.
  void fail_all(const std::string& why);

 private:
  std::mutex mutex_;
  std::string why_;  // empty: nothing was given up
  uint64_t next_ = 0;
  std::map<uint64_t, c10::intrusive_ptr<LiveWork>> under_way_;
};

}  // namespace brigade::torch_port
