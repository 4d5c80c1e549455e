// Messages between ranks, without a collective around them.
#pragma once
#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <vector>

#include "engine/run.h"

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace brigade::engine {

// All-to-all with parts of any length, over Gloo. Gloo sends a message once its receiver
// has announced that it waits, and what its own all-to-all announces queues behind what it
// sends: of two ranks that do not start at once, the earlier one can't send before it has
// the whole of the later one's message. Here every rank announces first. The messages of
// one group keep their order.
//
// It has no future: whoever has nothing else to do waits. One thread, but for abort().
class Transfers {
 public:
  // They may take until `limit` from now. REQUIRES: of the group's ranks, all do the same
  // next; `to` and `from` are as exchange_parts has them, and every length is as the other
  // end has it.
  static std::shared_ptr<Transfers> start(c10d::ProcessGroup& group,
                                          const at::Tensor& input,
                                          const std::vector<int64_t>& to,
                                          const at::Tensor& output,
                                          const std::vector<int64_t>& from,
                                          std::chrono::milliseconds limit);

  // Blocks until all messages have come and gone, or one of them failed: wait() throws it.
  void complete() noexcept;
  Clock::time_point completed_at() const { return completed_at_; }
  void wait();
  // Ends complete(), now or later, from any thread; wait() throws then.
  void abort();

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> messages_;
  Clock::time_point deadline_;
  bool over_ = false;
  Clock::time_point completed_at_;
  std::exception_ptr error_;
};

}  // namespace brigade::engine
