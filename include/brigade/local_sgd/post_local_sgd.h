// SPDX-License-Identifier: BSD-3-Clause
// Post-local SGD: gradients are averaged over all ranks at first, then only among few (Lin,
// Stich, Patel, Jaggi: Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020).
//
// From then on the groups of ranks go different ways: something must bring their parameters
// together again. brigade::optim::LocalSGD (brigade/local_sgd/local_sgd.h) owns this hook
// and what does so; use it unless you have a reason not to. For that reason the hook is not
// in the table of hooks either: no row there lets replicas differ for good.
#pragma once
#include <cstdint>
#include <memory>

#include "brigade/export.h"
#include "brigade/hook_wrapper.h"
#include "brigade/process_group.h"

namespace brigade {

// The names are PyTorch's.
struct PostLocalSGDOptions {
  // ---- changes the result
  // Before the start: the ranks to average over. Empty: those that the model's hook has.
  ProcessGroup group = {};
  // From the start on. Empty: the ranks of one host.
  ProcessGroup subgroup = {};
  // Backward passes that average over all; 0 or more.
  int64_t start_localSGD_iter = 0;
  // False: from the start on gradients stay as they are.
  bool post_local_gradient_allreduce = true;
};

class BRIGADE_API PostLocalSGDHook : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;
  // Backward passes so far; from start_localSGD_iter on they are local.
  virtual int64_t iteration() const = 0;
  // Between two passes, on all ranks the same; 0 or more.
  virtual void set_iteration(int64_t iteration) = 0;
};

// `inner` does the averaging, over all or among few; empty: all-reduce. Its state is part
// of this hook's. Throws ConfigError for options out of range.
BRIGADE_API std::shared_ptr<PostLocalSGDHook> make_post_local_sgd(
    PostLocalSGDOptions options = {}, std::shared_ptr<Hook> inner = {});

}  // namespace brigade
