// Waiting for other ranks: what LibTorch throws there gets a type.
#pragma once
#include <chrono>
#include <exception>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/failure.h"

namespace brigade::torch_port {

// What an error of a collective of `group` is about. Its rank is one of the group's: whose
// end of a connection the text names.
base::Cause failure_of(const std::exception& error, c10d::ProcessGroup& group);

// The number in the job of a rank of the group.
using Number = std::function<int(int rank)>;

// Throws `error`, which is under way: as PeerLostError, TimeoutError or another type of
// ours, with its own text, where it is LibTorch's and of such a kind; otherwise as it is.
[[noreturn]] void rethrow_typed(const std::exception& error, c10d::ProcessGroup& group,
                                const Number& number);
// The same where no group can be asked whom the text names. Null stays null.
std::exception_ptr typed(const std::exception_ptr& error);

// work.wait(limit), whose errors have types. Ranks are known by their number in `group`.
void wait(c10d::Work& work, std::chrono::milliseconds limit, c10d::ProcessGroup& group);

}  // namespace brigade::torch_port
