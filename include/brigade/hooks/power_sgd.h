// SPDX-License-Identifier: BSD-3-Clause
// PowerSGD: gradients as low-rank matrices (Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS
// 2019).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

struct CompressionStats {
  double rate = 0;  // before / after; 0 while nothing was compressed
  int64_t elements_before = 0;
  int64_t elements_after = 0;
};

// The names are PyTorch's.
struct PowerSGDOptions {
  // ---- changes the result
  // Columns of P and Q; 1 or more. More: less error, more bytes.
  int64_t matrix_approximation_rank = 1;
  // Steps of plain averaging before compression starts; 0 or more.
  int64_t start_powerSGD_iter = 1000;
  // A matrix is compressed only if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  // Add in the next step what this step lost.
  bool use_error_feedback = true;
  // Start from the last step's Q instead of a random one.
  bool warm_start = true;
  // Added to every column's norm; 0 is safe: a column of zeros stays zero.
  double orthogonalization_epsilon = 0;
  uint64_t random_seed = 0;
  // 2: P and Q in every step, one all-reduce after the other. 1: P and Q in turns, one
  // all-reduce a step: half the bytes and half the latency, and less exact, as each is
  // computed with the other of the step before. Only for make_power_sgd.
  int64_t rounds = 2;

  // ---- changes only speed or memory
  // Steps between two reports of the compression statistics.
  int64_t compression_stats_logging_frequency = 10'000;
  // Gets each report, on the thread that runs the hook; must not throw. Empty: it becomes a
  // line of LibTorch's log, at the level INFO.
  std::function<void(int64_t iteration, const CompressionStats& stats)> report = nullptr;
  // Compress matrices of one shape in one batched product.
  bool batch_tensors_with_same_shape = false;
};

class BRIGADE_API PowerSGDHook : public Hook {
 public:
  virtual CompressionStats compression_stats() const = 0;
};

// Each matrix of a bucket by itself; vectors and matrices too small to gain go uncompressed
// with the P's in one all-reduce; the Q's follow in a second, unless `rounds` is 1. Keeps
// errors and Q's by parameter. Throws ConfigError for options out of range.
BRIGADE_API std::shared_ptr<PowerSGDHook> make_power_sgd(PowerSGDOptions options = {});
// The whole bucket as one matrix, nearly square: faster, coarser.
BRIGADE_API std::shared_ptr<PowerSGDHook> make_batched_power_sgd(
    PowerSGDOptions options = {});

}  // namespace brigade
