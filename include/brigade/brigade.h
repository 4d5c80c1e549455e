// All of brigade.
#pragma once
#include "brigade/distributed_data_parallel.h"
#include "brigade/error.h"
#include "brigade/process_group.h"
#include "brigade/sampler.h"
