// Waits for other ranks, and turns LibTorch's errors there into typed ones.
#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/failure.h"

namespace brigade::torch_port {

// The kind of an error of one of `group`'s collectives. Its rank is the group's rank with
// the end of a connection that the text names.
base::Cause failure_of(const std::exception& error, c10d::ProcessGroup& group);

// Gives the number in the job of a rank of the group.
using Number = std::function<int(int rank)>;

// Throws `error`, which is being handled: as PeerLostError, TimeoutError or another type of
// ours, with its own text, if it is LibTorch's and of such a kind; otherwise unchanged.
[[noreturn]] void rethrow_typed(const std::exception& error, c10d::ProcessGroup& group,
                                const Number& number);
// The same without a group that knows the ends of connections. Null stays null.
std::exception_ptr typed(const std::exception_ptr& error);

// work.wait(limit) with typed errors, which have ranks by their number in `group`.
void wait(c10d::Work& work, std::chrono::milliseconds limit, c10d::ProcessGroup& group);

}  // namespace brigade::torch_port
