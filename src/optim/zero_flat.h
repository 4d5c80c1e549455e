// Parameters one after the other in flat tensors, each of one owner, dtype and device.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "brigade/hook.h"

namespace brigade::optim {

// The elements in the order of memory; none of them copied. REQUIRES: dense, no overlaps.
at::Tensor flat_view(const at::Tensor& parameter);

struct Flat {
  int owner = 0;
  std::vector<at::Tensor> parameters;
  int64_t length = 0;

  at::Tensor empty() const;
  // The parameters' values into `buffer`, and from there back to them.
  void read(at::Tensor buffer) const;
  void write(const at::Tensor& buffer) const;
  // The parameters become views into `buffer`, and keep their values.
  void settle_in(at::Tensor buffer) const;
};

// As few as can be, each of `most` bytes or one parameter at most; equal on all ranks.
// REQUIRES: owners[i] is the owner of parameters[i].
std::vector<Flat> make_flats(const std::vector<at::Tensor>& parameters,
                             const std::vector<int>& owners, int64_t most);

// Everyone gets the owners' values.
Task<void> share_flats(std::vector<Flat> flats, Comm& comm);

}  // namespace brigade::optim
