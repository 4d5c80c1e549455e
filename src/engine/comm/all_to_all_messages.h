// An all-to-all made of single messages.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <exception>
#include <memory>
#include <vector>

#include "engine/bucket_run.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace brigade::engine {

// All-to-all with parts of any length, over Gloo. Gloo sends a message once its receiver
// has announced that it waits. In Gloo's own all-to-all that announcement queues behind the
// messages that the rank sends, so if one rank starts earlier, it can't send before it has
// received the other's whole message. Here every rank announces first. The messages of one
// group keep their order.
//
// There is no future to chain on; the station's thread blocks in complete(). Used by one
// thread at a time, except for abort().
class AllToAllMessages {
 public:
  // The messages' deadline is `limit` from now. REQUIRES: all ranks of the group make the
  // same call next; `to` and `from` are as in Comm::all_to_all, and sender and receiver
  // give a part the same length.
  static std::shared_ptr<AllToAllMessages> start(c10d::ProcessGroup& group,
                                                 const at::Tensor& input,
                                                 const std::vector<int64_t>& to,
                                                 const at::Tensor& output,
                                                 const std::vector<int64_t>& from,
                                                 std::chrono::milliseconds limit);

  // Blocks until all messages are sent and received, or one has failed; wait() throws that
  // error. False: it was aborted.
  bool complete() noexcept;
  Clock::time_point completed_at() const { return completed_at_; }
  void wait();
  // Ends a present or later complete(); wait() then throws. May be called by any thread.
  void abort();

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> messages_;
  Clock::time_point deadline_;
  bool over_ = false;
  std::atomic<bool> aborted_ = false;
  Clock::time_point completed_at_;
  std::exception_ptr error_;
};

}  // namespace brigade::engine
