// SPDX-License-Identifier: BSD-3-Clause
// Start here to write a hook that gives parts of a bucket to other hooks:
//
//   Task<at::Tensor> Mine::reduce(Bucket bucket, Comm& comm) {
//     BucketPart matrices(bucket, places_of_matrices(bucket));
//     BucketPart others(bucket, places_of_others(bucket));
//     Comm::Body body = [&](int lane, Comm& own) -> Task<void> {
//       BucketPart& part = lane == 0 ? matrices : others;
//       Hook& hook = lane == 0 ? *coarse_ : *exact_;
//       part.put_back(co_await hook.reduce(part.bucket(), own));
//     };
//     co_await comm.split(2, body);
//     co_return bucket.buffer();
//   }
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

// Some of a bucket's parameters as a bucket of their own, at the same place in the step.
class BRIGADE_API BucketPart {
 public:
  // `places`: of the parameters in `whole`, ascending. Where their gradients lie side by
  // side, the part is a view of whole's buffer; else they are copied together, into
  // `memory` if that is defined: one dimension, of as many elements, of the buffer's dtype
  // and device. REQUIRES: the bucket is dense.
  BucketPart(Bucket whole, const std::vector<size_t>& places, at::Tensor memory = {});

  const Bucket& bucket() const { return part_; }
  // `result`, of the part's length, becomes the gradients of its parameters in whole's
  // buffer. Does nothing where it is there already.
  void put_back(const at::Tensor& result);

  // Whether the gradients of the parameters at `places` lie side by side.
  static bool is_view(const std::vector<size_t>& places);
  // Elements of the part at `places`.
  static int64_t elements(const Bucket& whole, const std::vector<size_t>& places);

 private:
  at::Tensor in_whole_;                // what the part is a view of; undefined: it is none
  std::vector<at::Tensor> gradients_;  // of the whole, if the part is no view
  Bucket part_;
};

// The places of the buckets that a hook sees, if it does not see all: the first in a step
// has the index 0, and one is the last. To be used before the first co_await.
class BRIGADE_API BucketSequence {
 public:
  // How many parameters will come in a step. If it is not told, that is what came in the
  // step before; in the first step the last of all buckets is the last.
  void expect(int64_t parameters) {
    expected_ = parameters;
    told_ = true;
  }
  // To be called for every bucket of a step, also those that the hook does not see.
  void pass(const Bucket& whole);
  // `seen`, which has been made of the bucket that was last given to pass(), at its place.
  Bucket next(const Bucket& seen);

 private:
  bool told_ = false;
  int64_t expected_ = 0;
  int64_t parameters_ = 0;  // seen in this step
  int64_t buckets_ = 0;
  bool whole_is_last_ = false;
};

// While it lives, what `comm` and lanes split from it send counts under a name of its own
// too: HookStats::parts.
class BRIGADE_API CountScope {
 public:
  // `bytes_before`: of the gradients that this is about.
  CountScope(Comm& comm, std::string name, int64_t bytes_before);
  ~CountScope();
  CountScope(const CountScope&) = delete;
  CountScope& operator=(const CountScope&) = delete;

 private:
  Comm& comm_;
  std::string before_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// The state of a hook that is made of others: `from`, the state of the part number `part`,
// under keys of its own. combine_states() combines each part by itself.
BRIGADE_API void add_part_state(HookState& to, int part, const HookState& from);
BRIGADE_API HookState part_state(const HookState& from, int part);

}  // namespace brigade
