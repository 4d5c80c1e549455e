// Parameters one after the other in flat tensors, each of one owner, dtype and device.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "brigade/hook.h"

namespace brigade::optim {

// The elements in the order of memory; none of them copied. REQUIRES: dense, no overlaps.
at::Tensor flat_view(const at::Tensor& parameter);

// On the host, messages of this size and more are not copied together: that would cost
// more than a collective for each.
inline constexpr int64_t kInPlaceBytes = int64_t{1} << 20;

struct Flat {
  int owner = 0;
  std::vector<at::Tensor> parameters;
  int64_t length = 0;
  // One parameter, which is sent from and to where it is.
  bool in_place = false;

  at::Tensor empty() const;
  // What to send: in_place the parameter's own memory, otherwise new, with any content.
  at::Tensor message() const;
  // The parameters' values into a message, and from there back to them.
  void read(at::Tensor buffer) const;
  void write(const at::Tensor& buffer) const;
  // The parameters become views into `buffer`, and keep their values.
  void settle_in(at::Tensor buffer) const;
};

// As few as can be, each of `most` bytes or one parameter at most; equal on all ranks.
// Those from `alone` bytes on, on the host, are in_place.
// REQUIRES: owners[i] is the owner of parameters[i].
std::vector<Flat> make_flats(const std::vector<at::Tensor>& parameters,
                             const std::vector<int>& owners, int64_t most, int64_t alone);

// Everyone gets the owners' values; `make` is called before a flat is sent, on every rank.
using MakeFlat = std::function<void(const Flat& flat)>;
Task<void> share_flats(std::vector<Flat> flats, Comm& comm, MakeFlat make);

}  // namespace brigade::optim
