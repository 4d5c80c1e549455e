// A large parameter's way over the wire for the hook "zero": its gradient is sent from the
// bucket, and its values arrive where they belong, without messages in between.
#pragma once
#include <ATen/core/Tensor.h>

#include "brigade/hook.h"
#include "zero/pieces.h"

namespace brigade::optim {

class InPlace {
 public:
  // Whether the copies of messages would cost more than a collective for each parameter.
  // Equal on all ranks.
  static bool pays(const CutParameter& parameter);

  // `gradient`: the parameter's part of the bucket. Keeps a reference to the parameter.
  InPlace(const CutParameter& parameter, at::Tensor gradient, int me);
  // How many elements of memory the exchange needs.
  int64_t scratch() const { return parts() * own_.length; }
  // The mean of this rank's piece, added up in the order of the ranks: it is in the bucket,
  // which has no other use afterwards.
  Task<at::Tensor> reduce_scatter(at::Tensor scratch, Comm& comm) const;
  // The other ranks' pieces of the parameter.
  Task<void> all_gather(at::Tensor scratch, Comm& comm) const;

 private:
  int ranks() const { return parameter_.ranks(); }
  // A piece between others' is sent along, to this rank itself: what is sent is one stretch
  // of memory.
  bool between() const { return me_ > 0 && me_ + 1 < ranks(); }
  int64_t parts() const { return ranks() - (between() ? 0 : 1); }
  int64_t place_of(int rank) const { return rank > me_ && !between() ? rank - 1 : rank; }
  at::Tensor stretch(const at::Tensor& whole) const;
  std::vector<int64_t> theirs() const;  // how much of the stretch belongs to each rank
  std::vector<int64_t> mine() const;    // a piece of this rank's length, for each part

  const CutParameter& parameter_;
  const at::Tensor gradient_;
  const int me_;
  const Range own_;
};

}  // namespace brigade::optim
