// Shared by tests of every hook: the rows to run, and comparisons.
#pragma once
#include <gtest/gtest.h>

#include "brigade/brigade.h"
#include "hooks/cases.h"

namespace brigade::testing {

// Every row, more forms of PowerSGD, and compositions. Rank 6 exceeds the kernels' limit.
inline std::vector<HookCase> cases() {
  constexpr Gradients kRank1{Structure::matrix, 1};
  const double low_rank = kLowRankTolerance;
  std::vector<HookCase> list = table_cases();
  list.push_back({"powersgd:start=0,batch=1,warm=0", low_rank, kRank1});
  list.push_back({"powersgd:start=0,rank=3,ef=0", low_rank, {Structure::matrix, 3}});
  list.push_back({"powersgd:start=0,rank=6", low_rank, {Structure::matrix, 6}});
  // With one round a step is exact only for a basis that fits (power_sgd_test.cpp).
  list.push_back({"powersgd:start=0,rank=2,rounds=1", kOwing, {Structure::matrix, 2}});
  list.push_back(
      {"powersgd:start=0,rank=6,rounds=1,batch=1", kOwing, {Structure::matrix, 6}});
  // The values not sent yet may be those of a few steps.
  list.push_back({"topk:ratio=0.2", kOwing, {}});
  list.push_back({"randomk:ratio=0.2", kOwing, {}});
  list.push_back({"powersgd", 1e-5, {}});  // not started yet
  list.push_back({"fp16+allreduce", 2e-3, {}});
  list.push_back({"bf16+powersgd:start=0", 2e-2, kRank1});
  list.push_back({"fp16+int8", 1.5e-2, {}});
  list.push_back(
      {"rules:p0=allreduce;p1=node+fp16;p2=bf16+allreduce;*=int8(small=300)", 1.5e-2, {}});
  return list;
}

inline std::vector<HookCase> averaging_cases() {
  std::vector<HookCase> list = cases();
  leave_out_noop(list);
  return list;
}

inline void set_hook(Rig& rig, const HookCase& c) {
  rig.ddp->set_hook(make_hook(c.spec));
  rig.kind = c.kind;
}

// Puts all into one message: a broadcast takes longer than most of these tensors.
inline void expect_same_on_all_ranks(const ProcessGroup& group,
                                     const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bits;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel()) bits.push_back(tensor.contiguous().view({-1}).view(at::kByte));
  }
  if (bits.empty()) return;
  const at::Tensor mine = at::cat(bits);
  at::Tensor theirs = mine.clone();
  group.broadcast(theirs, 0);
  EXPECT_TRUE(at::equal(mine, theirs)) << "replicas disagree";
}

inline bool all_finite(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.flatten());
  return at::isfinite(at::cat(flat)).all().item<bool>();
}

}  // namespace brigade::testing
