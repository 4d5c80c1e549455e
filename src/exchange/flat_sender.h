// Sends the owners' parameters to everybody, outside of a backward pass.
#pragma once
#include <array>
#include <deque>
#include <vector>

#include "brigade/process_group.h"
#include "exchange/flat_buffer.h"

namespace brigade {

// Not thread-safe.
class FlatSender {
 public:
  explicit FlatSender(ProcessGroup group) : group_(std::move(group)) {}

  // Decides which parameters travel together. `views`: the parameters become views into one
  // tensor for each flat buffer, which is sent without a copy.
  void lay_out(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
               bool views);
  // False: lay_out is to be called, for the first time or because parameters have other
  // memory now.
  bool laid_out() const;
  void clear() { buffers_.clear(), memory_.clear(); }

  // Collective. Everyone gets the owners' values.
  void send();

 private:
  struct Message;
  struct Sending;
  bool mine(const FlatBuffer& buffer) const { return buffer.owner == group_.rank(); }
  bool needs_copy(const FlatBuffer& buffer) const {
    return !buffer.in_place && memory_.empty();
  }
  bool rank_to_rank(const FlatBuffer& buffer) const;
  void make_channels();
  c10d::ProcessGroup& channel(int from, int to) const {
    return *channels_[from < to].c10d();
  }
  void start(size_t index, Sending& sending) const;
  void finish_first(std::deque<Message>& messages, Sending& sending) const;

  const ProcessGroup group_;
  // For messages from one rank to another, made when they are needed: one to higher ranks
  // and one to lower ranks. Gloo reads and writes a connection by turns, not at once.
  std::array<ProcessGroup, 2> channels_;
  std::vector<FlatBuffer> buffers_;
  std::vector<at::Tensor> memory_;  // with views, one for each buffer
};

}  // namespace brigade
