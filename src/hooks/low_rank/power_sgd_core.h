// Shared by the two forms of PowerSGD: options, random starts, orthogonalization,
// statistics.
#pragma once
#include <ATen/core/Tensor.h>

#include <mutex>
#include <string>
#include <vector>

#include "brigade/compose_hooks.h"
#include "brigade/hooks.h"
#include "codec/low_rank.h"

namespace brigade {

// Makes the columns of each matrix of a batch (b, rows, r) orthonormal, in place. A column
// that is zero or depends on those before it becomes zero (with QR: any orthonormal one).
void orthogonalize(at::Tensor batch, double epsilon);
// Does the same for matrices of any shapes.
void orthogonalize(const std::vector<low_rank::Columns>& matrices, double epsilon);

// Returns q (…, columns, r) with columns of zeros, which would stay so, replaced by the
// spare's.
at::Tensor revive(const at::Tensor& q, const at::Tensor& spare);

// Returns what a step leaves behind: `fresh`, or `old` if a gradient was not finite on some
// rank, which makes q not finite on all ranks. The host does not wait for a device.
at::Tensor keep(const at::Tensor& finite, const at::Tensor& fresh, const at::Tensor& old);

// Returns standard normal values (b, rows, r) from a generator of its own. They are the
// same on all ranks for the same seed and draw.
at::Tensor random_start(at::IntArrayRef shape, const at::TensorOptions& options,
                        uint64_t seed, uint64_t draw);

// Returns the number of columns of a nearly square matrix of that many values. It is a
// layer's `width` (0: there is none), or a multiple or fraction, if the factors then are at
// most 3 % longer than a square's; else a square's. So whole rows of the layer lie below
// each other or side by side, and the layer's low rank is the matrix's, too.
int64_t nearly_square_columns(int64_t values, int64_t width);

// Half types are computed in float32.
at::ScalarType compute_dtype(at::ScalarType dtype);

class PowerSGDBase : public PowerSGDHook, public RevertibleHook {
 public:
  PowerSGDBase(std::string name, PowerSGDOptions options);
  std::string name() const override { return name_; }
  std::string fingerprint() const override;
  CompressionStats compression_stats() const override;

 protected:
  // Returns whether compression has started for this bucket, and counts iterations at the
  // last bucket. REQUIRES: called before the bucket's first co_await.
  bool compresses(const Bucket& bucket);
  void count(const Bucket& bucket, int64_t before, int64_t after);
  at::Tensor next_start(at::IntArrayRef shape, const at::TensorOptions& options);
  void save_base(HookState& state) const;
  void load_base(const HookState& state);
  void reset_base();
  // Commits, for RevertibleHook, all that save_base() saves.
  void commit_base();
  void take_back_base();

  const std::string name_;
  const PowerSGDOptions options_;

 private:
  struct Progress {
    int64_t iteration = 0;
    uint64_t draws = 0;
    int64_t next_report = 0;
    // Numbers of elements for compression_stats().
    int64_t before = 0;
    int64_t after = 0;
  };
  mutable std::mutex stats_mutex_;  // guards `before` and `after`, which any thread reads
  Progress progress_;
  Progress committed_;
};

}  // namespace brigade
