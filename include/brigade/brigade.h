// All of brigade.
#pragma once
#include "brigade/checkpoint.h"
#include "brigade/distributed_data_parallel.h"
#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/hooks/power_sgd.h"
#include "brigade/hooks/registry.h"
#include "brigade/launch.h"
#include "brigade/optim/zero.h"
#include "brigade/optim/zero_hooks.h"
#include "brigade/process_group.h"
#include "brigade/sampler.h"
