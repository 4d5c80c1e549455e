// Precompiled for the library: the LibTorch headers that most sources need. Nothing may
// depend on it: every source includes what it uses.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>
