// One network, trained under several hooks in the same workers.
#pragma once
#include <string>
#include <vector>

#include "common/json.h"
#include "common/workers.h"
#include "demo/training.h"

namespace brigade::tool {

// Starts the workers, in which the trainings take turns, a few steps each: so all of them
// meet the same load of the machine. Shows them while they go on. The record has a series a
// hook, and in `setup` what was trained on what.
RunRecord train_side_by_side(const WorkerOptions& workers,
                             const std::vector<std::string>& hooks,
                             const DemoTraining& training);

}  // namespace brigade::tool
