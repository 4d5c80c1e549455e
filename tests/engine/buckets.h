// Buckets without a Reducer, for tests of the engine.
#pragma once
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "brigade/hook.h"

namespace brigade::testing {

inline Bucket make_bucket(size_t index, size_t count, at::Tensor buffer) {
  c10d::GradBucket bucket(index, count, buffer, {0}, {static_cast<size_t>(buffer.numel())},
                          {buffer.sizes()}, {buffer}, std::nullopt);
  return Bucket(std::move(bucket), {"parameter" + std::to_string(index)});
}

}  // namespace brigade::testing
