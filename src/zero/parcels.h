// Optimizer state on its way from rank to rank.
#pragma once
#include <map>
#include <string>

#include "brigade/optim/optimizer.h"
#include "brigade/process_group.h"

namespace brigade::optim {

// By the rank that it is for.
using Parcels = std::map<int, OptimizerState>;

// Collective. Gives what the others have sent to this rank, and what it has sent to itself,
// in one. Keys that several have sent have the highest rank's. Tensors that came from
// others are on `device`.
OptimizerState exchange_parcels(const ProcessGroup& group, const Parcels& mine,
                                at::Device device);

// Adds what is not there yet.
void merge(OptimizerState& into, OptimizerState from);
// With `prefix` before each key, and what has it without it.
OptimizerState with_prefix(const std::string& prefix, const OptimizerState& state);
OptimizerState without_prefix(const std::string& prefix, const OptimizerState& state);

}  // namespace brigade::optim
