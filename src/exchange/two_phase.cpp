#include "exchange/two_phase.h"

#include <ATen/ATen.h>

#include <numeric>

#include "brigade/compose_hooks.h"

namespace brigade {
namespace {

// The messages of all ranks in the result of exchange_means(), this rank's first.
at::Tensor all_messages(const at::Tensor& memory, const Chunks& chunks, int ranks) {
  return memory.narrow(0, (ranks - 2) * chunks.message_bytes, ranks * chunks.message_bytes);
}

// `messages`: this rank's first, then the others' by rank.
void decode_all(const Codec& codec, const Chunks& chunks, int ranks, int me,
                const at::Tensor& messages, const at::Tensor& values) {
  for (int owner = 0; owner < ranks; ++owner) {
    const int place = owner == me ? 0 : owner < me ? owner + 1 : owner;
    codec.decode(chunks.message(messages, place), chunks.length, chunks.of(values, owner));
  }
}

}  // namespace

bool TwoPhase::by_host(const Comm& comm) const {
  return !flat_ && comm.layout().shares_hosts();
}

std::string TwoPhase::division(const Comm& comm) const {
  if (!by_host(comm)) return "flat";
  const HostLayout& layout = comm.layout();
  return layout.text() + ", place " + std::to_string(layout.place);
}

// Runs both phases. Returns memory with the chunks' means, still encoded.
Task<at::Tensor> TwoPhase::exchange_means(at::Tensor values, Residuals residuals,
                                          int divisor, Semaphore::Permit* turn,
                                          Comm& comm) {
  const Codec& codec = *codec_;
  const int ranks = comm.size(), me = comm.rank();
  const Chunks chunks(values.numel(), ranks, codec);
  const auto residual_of = [&](int owner) {
    return residuals.each([&](const at::Tensor& whole) { return chunks.of(whole, owner); });
  };

  const int64_t bytes = (ranks - 1) * chunks.message_bytes;
  at::Tensor memory = pool_.take(2 * bytes, values.device());
  at::Tensor outgoing = memory.narrow(0, 0, bytes);
  at::Tensor incoming = memory.narrow(0, bytes, bytes);
  each_other(ranks, me, [&](int owner, int place) {
    codec.encode(chunks.of(values, owner), chunks.length, 1.0, residual_of(owner),
                 chunks.message(outgoing, place));
  });
  co_await comm.all_to_others(outgoing, incoming);
  if (turn) turn->release();

  // The owner's values are not encoded; their residual is added.
  at::Tensor sum = chunks.of(values, me);
  // The last outgoing message is adjacent to the incoming ones.
  at::Tensor mean = chunks.message(outgoing, ranks - 2);
  codec.reduce(sum, incoming, chunks.length, divisor, residual_of(me), mean);
  for (int place = 0; place < ranks - 2; ++place)
    chunks.message(outgoing, place).copy_(mean);
  co_await comm.all_to_others(outgoing, incoming);
  co_return memory;
}

Task<void> TwoPhase::reduce_segment(at::Tensor values, Residuals residuals, Comm& comm) {
  const int ranks = comm.size();
  at::Tensor memory = co_await exchange_means(values, residuals, ranks, nullptr, comm);
  const Chunks chunks(values.numel(), ranks, *codec_);
  decode_all(*codec_, chunks, ranks, comm.rank(), all_messages(memory, chunks, ranks),
             values);
  pool_.give_back(std::move(memory));
}

// This rank's part becomes the sum over its host ranks, exactly.
Task<void> TwoPhase::add_up_in_host(at::Tensor values, HostChunks parts, Comm& comm) {
  const std::vector<int64_t> from = parts.incoming_lengths();
  const int64_t count = std::accumulate(from.begin(), from.end(), int64_t{0});
  at::Tensor memory = pool_.take(count * int64_t{sizeof(float)}, values.device());
  at::Tensor incoming = memory.view(at::kFloat);
  co_await comm.all_to_all(parts.outgoing(values), parts.outgoing_lengths(), incoming,
                           from);
  at::Tensor sum = parts.of(values, parts.me());
  int64_t begin = 0;
  for (int mate = 0; mate < parts.host_ranks(); ++mate) {
    const int64_t length = from[static_cast<size_t>(mate)];
    if (mate != parts.me() && length > 0) sum.add_(incoming.narrow(0, begin, length));
    begin += length;
  }
  pool_.give_back(std::move(memory));
}

// Sends this rank's messages from the other hosts to its host ranks: they are fewer bytes
// than the values, and decode to the same bits.
Task<void> TwoPhase::share_in_host(at::Tensor values, at::Tensor memory, HostChunks parts,
                                   Comm& comm) {
  const auto chunks_of = [&](int mate) {
    return Chunks(parts.length(mate), parts.hosts(), *codec_);
  };
  const int64_t bytes = parts.wire_bytes(parts.me());
  at::Tensor own = bytes > 0 ? all_messages(memory, chunks_of(parts.me()), parts.hosts())
                             : at::empty({0}, values.options().dtype(at::kByte));
  std::vector<int64_t> to(static_cast<size_t>(parts.host_ranks()), bytes), from;
  to[static_cast<size_t>(parts.me())] = 0;
  for (int mate = 0; mate < parts.host_ranks(); ++mate)
    from.push_back(mate == parts.me() ? 0 : parts.wire_bytes(mate));

  at::Tensor outgoing = own, copies;  // one for each of the others
  if (bytes > 0 && parts.host_ranks() > 2) {
    outgoing = copies = pool_.take((parts.host_ranks() - 1) * bytes, values.device());
    copies.view({-1, bytes}).copy_(own.expand({parts.host_ranks() - 1, bytes}));
  }
  at::Tensor incoming =
      pool_.take(std::accumulate(from.begin(), from.end(), int64_t{0}), values.device());
  if (parts.host_ranks() > 1) {
    co_await comm.all_to_all(outgoing, to, incoming, from);
  } else {
    co_await comm.skip();
  }

  int64_t begin = 0;
  for (int mate = 0; mate < parts.count(); ++mate) {
    const int64_t length = mate == parts.me() ? bytes : parts.wire_bytes(mate);
    if (length == 0) continue;
    const at::Tensor messages =
        mate == parts.me() ? own : incoming.narrow(0, begin, length);
    if (mate != parts.me()) begin += length;
    decode_all(*codec_, chunks_of(mate), parts.hosts(), parts.host(), messages,
               parts.of(values, mate));
  }
  if (copies.defined()) pool_.give_back(std::move(copies));
  pool_.give_back(std::move(incoming));
}

Task<void> TwoPhase::reduce_segment_by_host(at::Tensor values, Residuals residuals,
                                            Comm& comm) {
  const HostChunks parts(values.numel(), comm.layout(), *codec_);
  const int ranks = comm.size();
  const ProcessGroup host_ranks = comm.host_group(), peers = comm.peer_group();
  Semaphore::Permit turn = co_await turns_.acquire(comm);
  const at::Tensor whole = residuals.copied();
  if (whole.defined() && residuals.moved) parts.hand_over(values, whole);
  if (parts.host_ranks() > 1) {
    GroupScope host(comm, host_ranks);
    co_await add_up_in_host(values, parts, comm);
  } else {
    co_await comm.skip();
  }
  at::Tensor memory;
  if (parts.length(parts.me()) > 0) {
    GroupScope between(comm, peers);
    at::Tensor own = parts.of(values, parts.me()), lost;
    if (whole.defined()) lost = parts.of(whole, parts.me());
    memory = co_await exchange_means(own, lost, ranks, &turn, comm);
  } else {
    co_await comm.skip(2);
  }
  {
    GroupScope host(comm, host_ranks);
    co_await share_in_host(values, memory, parts, comm);
  }
  if (memory.defined()) pool_.give_back(std::move(memory));
}

Task<void> TwoPhase::all_reduce(at::Tensor values, Residuals residuals, Comm& comm) {
  if (comm.size() == 1 || values.numel() == 0) co_return;
  const auto reduce = [&, by_host = by_host(comm)](at::Tensor part, Residuals lost,
                                                   Comm& lane) {
    return by_host ? reduce_segment_by_host(part, lost, lane)
                   : reduce_segment(part, lost, lane);
  };
  int64_t most = by_host(comm) ? kSegmentByHost : kSegment;
  if (comm.works_on_device()) most = kSegmentOnDevice;
  const int64_t count = (values.numel() + most - 1) / most;
  if (count == 1) co_return co_await reduce(values, residuals, comm);
  co_await comm.split(static_cast<int>(count), [&](int index, Comm& lane) {
    const auto part = [&](const at::Tensor& whole) {
      const int64_t begin = index * most;
      return whole.narrow(0, begin, std::min(most, whole.numel() - begin));
    };
    return reduce(part(values), residuals.each(part), lane);
  });
}

}  // namespace brigade
