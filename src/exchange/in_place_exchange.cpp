#include "exchange/in_place_exchange.h"

#include <ATen/ATen.h>

#include "exchange/equal_messages.h"
#include "exchange/flat_buffer.h"

namespace brigade {

bool InPlaceExchange::pays(const ShardedParameter& parameter) {
  const at::Tensor& whole = parameter.parameter();
  // On a device one exchange for all parameters is faster: NCCL would run theirs one after
  // the other, and Gloo would copy each to the host by itself.
  return whole.is_cpu() &&
         static_cast<int64_t>(whole.nbytes()) >= parameter.ranks() * kInPlaceBytes;
}

InPlaceExchange::InPlaceExchange(const ShardedParameter& parameter, at::Tensor gradient,
                                 int me)
    : parameter_(parameter),
      gradient_(std::move(gradient)),
      me_(me),
      own_(parameter.range(me)) {}

at::Tensor InPlaceExchange::stretch(const at::Tensor& whole) const {
  if (between()) return whole;
  return me_ == 0 ? whole.narrow(0, own_.length, whole.numel() - own_.length)
                  : whole.narrow(0, 0, own_.begin);
}

std::vector<int64_t> InPlaceExchange::lengths_of_theirs() const {
  std::vector<int64_t> lengths;
  for (int rank = 0; rank < ranks(); ++rank)
    lengths.push_back(rank != me_ || between() ? parameter_.range(rank).length : 0);
  return lengths;
}

std::vector<int64_t> InPlaceExchange::lengths_of_mine() const {
  std::vector<int64_t> lengths(static_cast<size_t>(ranks()), own_.length);
  if (!between()) lengths[static_cast<size_t>(me_)] = 0;
  return lengths;
}

Task<at::Tensor> InPlaceExchange::reduce_scatter(at::Tensor scratch, Comm& comm) const {
  // Small types divide first, so that no sum overflows; others last, where there is less
  // work.
  const bool divided = gradient_.element_size() < 4;
  if (divided) at::Tensor(gradient_).div_(ranks());
  co_await comm.all_to_all(stretch(gradient_), lengths_of_theirs(), scratch,
                           lengths_of_mine());
  at::Tensor mean = gradient_.narrow(0, own_.begin, own_.length);
  std::vector<at::Tensor> by_rank;
  for (int rank = 0; rank < ranks(); ++rank) {
    by_rank.push_back(
        rank == me_ ? mean : scratch.narrow(0, place_of(rank) * own_.length, own_.length));
  }
  mean_of_shards(by_rank, divided, mean);
  co_return mean;
}

Task<void> InPlaceExchange::all_gather(at::Tensor scratch, Comm& comm) const {
  at::Tensor outgoing = parameter_.shard(me_);
  if (parts() > 1) {
    scratch.narrow(0, 0, own_.length).copy_(outgoing);
    repeat_first(scratch, parts());
    outgoing = scratch;
  }
  const at::Tensor whole = flat_view(parameter_.parameter());
  co_await comm.all_to_all(outgoing, lengths_of_mine(), stretch(whole),
                           lengths_of_theirs());
  // Autograd detects by the version that a value it saved has changed.
  parameter_.parameter().unsafeGetTensorImpl()->bump_version();
}

}  // namespace brigade
