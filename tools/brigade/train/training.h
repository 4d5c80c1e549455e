// Trains in a worker of brigade train.
#pragma once
#include "common/workers.h"
#include "train/data/data.h"
#include "train/options.h"

namespace brigade::tool {

// Collective over the worker's group: trains, evaluates, saves; rank 0 shows the progress
// and writes the files. Throws Error when the loss is not finite, when replicas that must
// be equal differ, and when something cannot be written.
void train(const Worker& worker, const TrainOptions& options, const TrainData& data);

}  // namespace brigade::tool
