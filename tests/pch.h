// Precompiled for the tests. Nothing may depend on it.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
