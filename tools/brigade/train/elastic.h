// brigade train --elastic: trains in workers that may die.
#pragma once
#include "train/data/data.h"
#include "train/options.h"

namespace brigade::tool {

// Runs under a launcher with --elastic. Shows losses, each change of members, and at the
// end a fingerprint of each replica.
void train_elastic(const TrainOptions& options, const TrainData& data);

}  // namespace brigade::tool
