#include "engine/comm/all_to_all_messages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "brigade/error.h"

namespace brigade::engine {
namespace {

// Calls body(rank, its part) for each other rank that has one; then for `me`.
template <typename Body>
at::Tensor each_part(const at::Tensor& whole, const std::vector<int64_t>& lengths, int me,
                     Body body) {
  at::Tensor own;
  int64_t begin = 0;
  for (int rank = 0; rank < static_cast<int>(lengths.size()); ++rank) {
    const int64_t length = lengths[static_cast<size_t>(rank)];
    at::Tensor part = whole.narrow(0, begin, length);
    begin += length;
    if (rank == me) {
      own = part;
    } else if (length > 0) {
      std::vector<at::Tensor> parts{part};
      body(rank, parts);
    }
  }
  return own;
}

}  // namespace

std::shared_ptr<AllToAllMessages> AllToAllMessages::start(c10d::ProcessGroup& group,
                                                          const at::Tensor& input,
                                                          const std::vector<int64_t>& to,
                                                          const at::Tensor& output,
                                                          const std::vector<int64_t>& from,
                                                          std::chrono::milliseconds limit) {
  constexpr int kTag = 0;
  auto transfers = std::make_shared<AllToAllMessages>();
  transfers->deadline_ = Clock::now() + limit;
  auto& messages = transfers->messages_;
  at::Tensor got = each_part(output, from, group.getRank(), [&](int rank, auto& part) {
    messages.push_back(group.recv(part, rank, kTag));
  });
  const at::Tensor kept = each_part(input, to, group.getRank(), [&](int rank, auto& part) {
    messages.push_back(group.send(part, rank, kTag));
  });
  if (kept.numel() > 0) got.copy_(kept);
  return transfers;
}

bool AllToAllMessages::complete() noexcept {
  if (std::exchange(over_, true)) return !aborted_;
  try {
    for (const auto& message : messages_) {
      using std::chrono::milliseconds;
      const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
      // Zero would mean the group's limit.
      if (!message->wait(std::max(left, milliseconds(1))))
        throw Error("the exchange with the other ranks was given up");
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  completed_at_ = Clock::now();
  return !aborted_;
}

void AllToAllMessages::wait() {
  complete();
  if (error_) std::rethrow_exception(error_);
}

void AllToAllMessages::abort() {
  aborted_ = true;
  for (const auto& message : messages_) message->abort();
}

}  // namespace brigade::engine
