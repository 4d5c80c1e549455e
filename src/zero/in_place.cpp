#include "zero/in_place.h"

#include <ATen/ATen.h>

#include "engine/all_to_others.h"
#include "zero/flat.h"

namespace brigade::optim {

bool InPlace::pays(const CutParameter& parameter) {
  const at::Tensor& whole = parameter.parameter();
  // On a device one exchange for all parameters is better: with NCCL they would come one
  // after the other, and Gloo would stage each by itself.
  return whole.is_cpu() &&
         static_cast<int64_t>(whole.nbytes()) >= parameter.ranks() * kInPlaceBytes;
}

InPlace::InPlace(const CutParameter& parameter, at::Tensor gradient, int me)
    : parameter_(parameter),
      gradient_(std::move(gradient)),
      me_(me),
      own_(parameter.range(me)) {}

at::Tensor InPlace::stretch(const at::Tensor& whole) const {
  if (between()) return whole;
  return me_ == 0 ? whole.narrow(0, own_.length, whole.numel() - own_.length)
                  : whole.narrow(0, 0, own_.begin);
}

std::vector<int64_t> InPlace::theirs() const {
  std::vector<int64_t> lengths;
  for (int rank = 0; rank < ranks(); ++rank)
    lengths.push_back(rank != me_ || between() ? parameter_.range(rank).length : 0);
  return lengths;
}

std::vector<int64_t> InPlace::mine() const {
  std::vector<int64_t> lengths(static_cast<size_t>(ranks()), own_.length);
  if (!between()) lengths[static_cast<size_t>(me_)] = 0;
  return lengths;
}

Task<at::Tensor> InPlace::reduce_scatter(at::Tensor scratch, Comm& comm) const {
  // First for small types, so that no sum overflows; else where there is less to do.
  const bool divided = gradient_.element_size() < 4;
  if (divided) at::Tensor(gradient_).div_(ranks());
  co_await engine::exchange_parts(comm, stretch(gradient_), theirs(), scratch, mine());
  at::Tensor mean = gradient_.narrow(0, own_.begin, own_.length);
  std::vector<at::Tensor> by_rank;
  for (int rank = 0; rank < ranks(); ++rank) {
    by_rank.push_back(
        rank == me_ ? mean : scratch.narrow(0, place_of(rank) * own_.length, own_.length));
  }
  add_up(by_rank, divided, mean);
  co_return mean;
}

Task<void> InPlace::all_gather(at::Tensor scratch, Comm& comm) const {
  const at::Tensor& piece = parameter_.piece(me_);
  if (parts() > 1) {
    for (int64_t part = 0; part < parts(); ++part)
      scratch.narrow(0, part * own_.length, own_.length).copy_(piece);
  }
  const at::Tensor whole = flat_view(parameter_.parameter());
  co_await engine::exchange_parts(comm, parts() > 1 ? scratch : piece, mine(),
                                  stretch(whole), theirs());
  // Autograd finds out by it that a value it saved is gone.
  parameter_.parameter().unsafeGetTensorImpl()->bump_version();
}

}  // namespace brigade::optim
