// Parameters one after the other in flat buffers, each of one owner, dtype and device.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "brigade/hook.h"

namespace brigade {

// The elements in the order of memory; none of them is copied. REQUIRES: the parameter is
// dense, and no two elements share memory.
at::Tensor flat_view(const at::Tensor& parameter);

// On the host, messages of this size and more are not copied together: that would cost
// more than a collective for each.
inline constexpr int64_t kInPlaceBytes = int64_t{1} << 20;

// Which parameters travel together in one message.
struct FlatBuffer {
  int owner = 0;
  std::vector<at::Tensor> parameters;
  int64_t length = 0;
  // There is one parameter, and it is sent from and to where it is.
  bool in_place = false;

  // New memory for all of the parameters, with any content.
  at::Tensor empty() const;
  // What to send: the parameter's own memory if in_place, otherwise new memory.
  at::Tensor message() const;
  // Copies the parameters' values into a message, and from there back to them.
  void read(at::Tensor message) const;
  void write(const at::Tensor& message) const;
  // The parameters become views into `memory`, and keep their values.
  void move_into(at::Tensor memory) const;
};

// As few buffers as can be, each of `most` bytes or one parameter at most; equal on all
// ranks. Parameters on the host of `alone` bytes and more are in_place.
// REQUIRES: owners[i] is the owner of parameters[i].
std::vector<FlatBuffer> make_flat_buffers(const std::vector<at::Tensor>& parameters,
                                          const std::vector<int>& owners, int64_t most,
                                          int64_t alone);

// Everyone gets the owners' values. `prepare` is called on every rank before a buffer is
// sent.
using PrepareBuffer = std::function<void(const FlatBuffer& buffer)>;
Task<void> share_flat_buffers(std::vector<FlatBuffer> buffers, Comm& comm,
                              PrepareBuffer prepare);

}  // namespace brigade
