// What a worker of brigade train does.
#pragma once
#include "common/workers.h"
#include "train/data/data.h"
#include "train/options.h"

namespace brigade::tool {

// Collective over the worker's group: trains, evaluates, saves; rank 0 shows what happens
// and writes the files. Throws Error when the loss is not finite, when replicas differ that
// must not, and when something cannot be written.
void train(const Worker& worker, const TrainOptions& options, const TrainData& data);

}  // namespace brigade::tool
