// Flat buffers with parameters of one owner, dtype and device, and how owners send them to
// all ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <functional>
#include <vector>

#include "brigade/hook.h"
#include "brigade/process_group.h"

namespace brigade {

// A view of all elements in the order of memory. REQUIRES: the parameter is dense, and no
// two elements share memory.
at::Tensor flat_view(const at::Tensor& parameter);

// On the host, parameters of this size and more get a collective each: copying them into a
// common message would cost more.
inline constexpr int64_t kInPlaceBytes = int64_t{1} << 20;

// The parameters that are sent in one message.
struct FlatBuffer {
  int owner = 0;
  std::vector<at::Tensor> parameters;
  int64_t length = 0;
  // True: there is one parameter, and it is sent and received without a copy.
  bool in_place = false;

  // New memory for all parameters, with any content.
  at::Tensor empty() const;
  // The memory to send: the parameter's own if in_place, otherwise new memory.
  at::Tensor message() const;
  // Copies the parameters' values into a message, and from there back to them.
  void read(at::Tensor message) const;
  void write(const at::Tensor& message) const;
  // The parameters become views into `memory`, and keep their values.
  void move_into(at::Tensor memory) const;
};

// Makes as few buffers as possible, each of `most` bytes or one parameter at most; equal on
// all ranks. Parameters on the host of `alone` bytes and more are in_place.
// REQUIRES: owners[i] is the owner of parameters[i].
std::vector<FlatBuffer> make_flat_buffers(const std::vector<at::Tensor>& parameters,
                                          const std::vector<int>& owners, int64_t most,
                                          int64_t alone);

// All ranks get the owners' values. `prepare` is called on every rank before a buffer is
// sent.
using PrepareBuffer = std::function<void(const FlatBuffer& buffer)>;
Task<void> share_flat_buffers(std::vector<FlatBuffer> buffers, Comm& comm,
                              PrepareBuffer prepare);

// Sends the owners' parameters to all ranks, outside of a backward pass. Not thread-safe.
class FlatSender {
 public:
  explicit FlatSender(ProcessGroup group) : group_(std::move(group)) {}

  // Makes the flat buffers. `views`: the parameters become views into one tensor for each
  // buffer, which is sent without a copy.
  void lay_out(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
               bool views);
  // False: lay_out must be called, for the first time or because parameters have other
  // memory.
  bool laid_out() const;
  void clear() { buffers_.clear(), memory_.clear(); }

  // Collective. All ranks get the owners' values.
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
  // For point-to-point messages, to higher ranks and to lower ranks, because Gloo does not
  // read and write a connection at once. Made when they are needed.
  std::array<ProcessGroup, 2> channels_;
  std::vector<FlatBuffer> buffers_;
  std::vector<at::Tensor> memory_;  // with views, one for each buffer
};

}  // namespace brigade
