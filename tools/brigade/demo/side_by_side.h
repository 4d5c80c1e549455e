// One network, trained under several hooks in the same workers.
#pragma once
#include <string>
#include <vector>

#include "common/json.h"
#include "common/workers.h"
#include "demo/training.h"

namespace brigade::tool {

// Starts the workers and shows the trainings, which take turns, a few steps each, so that
// all of them meet the same load of the machine. The record has a series for each hook; its
// `setup` says what was trained on what.
RunRecord train_side_by_side(const WorkerOptions& workers,
                             const std::vector<std::string>& hooks,
                             const DemoTraining& training);

}  // namespace brigade::tool
