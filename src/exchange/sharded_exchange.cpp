#include "exchange/sharded_exchange.h"

#include <ATen/ATen.h>

#include "exchange/equal_messages.h"

namespace brigade {
namespace {

Task<void> exchange_alone(const ShardedItem& item, const InPlaceExchange& exchange,
                          at::Tensor scratch, const ShardedExchange::Change& change,
                          Comm& comm) {
  const at::Tensor mean = co_await exchange.reduce_scatter(scratch, comm);
  change(item, mean);
  co_await exchange.all_gather(scratch, comm);
}

// `memory` has the size of two chunks for each rank.
Task<void> exchange_together(const ShardLayout& layout, at::Tensor bucket,
                             at::Tensor memory, const ShardedExchange::Change& change,
                             Comm& comm) {
  const int64_t half = memory.numel() / 2;
  const at::Tensor out = memory.narrow(0, 0, half), in = memory.narrow(0, half, half);

  // This reduce-scatter does not copy this rank's own part.
  layout.read_gradients(bucket, out);
  // Small types divide first, so that no sum overflows; others last, where there is less
  // work.
  const bool divided = bucket.element_size() < 4;
  if (divided) layout.others(out).div_(comm.size());
  co_await comm.all_to_others(layout.others(out), layout.others(in));
  const at::Tensor mine = layout.chunk(out, comm.rank());
  layout.average(bucket, in, divided, mine);
  int64_t at = 0;
  for (const ShardedItem& item : layout.items()) {
    const int64_t length = item.parameter->range(comm.rank()).length;
    change(item, mine.narrow(0, at, length));
    at += length;
  }

  if (comm.works_on_device()) {
    layout.read(mine);
    co_await comm.all_gather(mine, in);
    layout.write(
        [&](int rank) { return in.narrow(0, rank * layout.length(), layout.length()); });
  } else {
    layout.read(out.narrow(0, 0, layout.length()));
    co_await send_to_all_others(comm, layout.others(out), layout.others(in));
    layout.write([&](int rank) { return layout.chunk(in, rank); });
  }
}

}  // namespace

Task<void> ShardedExchange::run(std::vector<ShardedItem> items, at::Tensor bucket,
                                Change change, Comm& comm) {
  std::vector<ShardedItem> large, small;
  for (const ShardedItem& item : items)
    (InPlaceExchange::pays(*item.parameter) ? large : small).push_back(item);
  std::vector<InPlaceExchange> in_place;
  int64_t elements = 0;
  for (const ShardedItem& item : large) {
    const int64_t length = item.parameter->parameter().numel();
    in_place.emplace_back(*item.parameter, bucket.narrow(0, item.offset, length),
                          comm.rank());
    elements += in_place.back().scratch();
  }
  ShardLayout layout(std::move(small), comm.size(), comm.rank());
  elements += int64_t{2} * comm.size() * layout.length();

  // The permits' holders are earlier buckets, which are at later stations already.
  const Semaphore::Permit turn = co_await turns_.acquire(comm);
  at::Tensor memory = pool_.take(elements * bucket.element_size(), bucket.device());
  co_await run_in(memory.view(bucket.scalar_type()), std::move(large), std::move(in_place),
                  std::move(layout), bucket, change, comm);
  pool_.give_back(std::move(memory));
}

Task<void> ShardedExchange::run_in(at::Tensor memory, std::vector<ShardedItem> large,
                                   std::vector<InPlaceExchange> in_place, ShardLayout small,
                                   at::Tensor bucket, const Change& change, Comm& comm) {
  if (large.empty()) {
    co_await exchange_together(small, bucket, memory, change, comm);
    co_return;
  }
  int64_t at = int64_t{2} * comm.size() * small.length();
  const at::Tensor for_small = memory.narrow(0, 0, at);
  std::vector<at::Tensor> scratch;
  for (const InPlaceExchange& each : in_place) {
    scratch.push_back(memory.narrow(0, at, each.scratch()));
    at += each.scratch();
  }
  const auto lanes = static_cast<int>(large.size());
  co_await comm.split(small.length() > 0 ? lanes + 1 : lanes, [&](int index, Comm& lane) {
    if (index == lanes) return exchange_together(small, bucket, for_small, change, lane);
    const auto i = static_cast<size_t>(index);
    return exchange_alone(large[i], in_place[i], scratch[i], change, lane);
  });
}

}  // namespace brigade
