// SPDX-License-Identifier: BSD-3-Clause
// What a program tells those who watch its job: brigade top and --metrics-port.
#pragma once
#include "brigade/export.h"

namespace brigade::report {

// This rank's loss of now. Steps, times and bytes are told by the model itself; TrainingLog
// and brigade train tell the loss too. Costs a few stores, does nothing where no launcher
// of Brigade's started this process, and waits for nobody. Any thread.
BRIGADE_API void show_loss(double loss);

}  // namespace brigade::report
