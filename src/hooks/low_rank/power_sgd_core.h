// What the two forms of PowerSGD share: options, random starts, orthogonalization,
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
// The same for matrices of any shapes.
void orthogonalize(const std::vector<low_rank::Columns>& matrices, double epsilon);

// q (…, columns, r), with columns of the spare in the place of columns of zeros, which
// would stay zero for ever.
at::Tensor revive(const at::Tensor& q, const at::Tensor& spare);

// What is kept of a step: `fresh`, or `old` if the gradient was not finite on some rank,
// which makes q not finite on all ranks. The host does not wait for a device.
at::Tensor keep(const at::Tensor& finite, const at::Tensor& fresh, const at::Tensor& old);

// Standard normal values (b, rows, r) from a generator of their own. They are the same on
// all ranks for the same seed and draw.
at::Tensor random_start(at::IntArrayRef shape, const at::TensorOptions& options,
                        uint64_t seed, uint64_t draw);

// Columns of a matrix of that many values, nearly square, that holds rows of a layer of
// `width` (0: there is none) below each other, or side by side in whole numbers: then the
// layer's low rank is the matrix's, too. They are `width`, a multiple or a part of it,
// where the matrix's factors are at most 3 % longer than a square's; else a square's.
int64_t nearly_square_columns(int64_t values, int64_t width);

// Half types compute in float32.
at::ScalarType compute_dtype(at::ScalarType dtype);

class PowerSGDBase : public PowerSGDHook, public RevertibleHook {
 public:
  PowerSGDBase(std::string name, PowerSGDOptions options);
  std::string name() const override { return name_; }
  std::string fingerprint() const override;
  CompressionStats compression_stats() const override;

 protected:
  // Whether compression has started for this bucket. To be called before the bucket's first
  // co_await. Counts iterations, at the last bucket.
  bool compresses(const Bucket& bucket);
  void count(const Bucket& bucket, int64_t before, int64_t after);
  at::Tensor next_start(at::IntArrayRef shape, const at::TensorOptions& options);
  void save_base(HookState& state) const;
  void load_base(const HookState& state);
  void reset_base();
  // Of RevertibleHook, for all that save_base() saves.
  void commit_base();
  void take_back_base();

  const std::string name_;
  const PowerSGDOptions options_;

 private:
  struct Progress {
    int64_t iteration = 0;
    uint64_t draws = 0;
    int64_t next_report = 0;
    // Elements, of compression_stats().
    int64_t before = 0;
    int64_t after = 0;
  };
  mutable std::mutex stats_mutex_;  // over `before` and `after`, which any thread reads
  Progress progress_;
  Progress committed_;
};

}  // namespace brigade
