// SPDX-License-Identifier: BSD-3-Clause
// Start here to write a hook around another: derive from HookWrapper, and override what is
// different.
//
//   class Scaled : public HookWrapper {
//    public:
//     using HookWrapper::HookWrapper;
//     std::string name() const override { return "scaled+" + inner().name(); }
//     Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
//       bucket.buffer().mul_(0.5);
//       co_return co_await reduce_inner(bucket, comm);
//     }
//   };
#pragma once
#include <memory>
#include <string>

#include "brigade/export.h"
#include "brigade/hook.h"

namespace brigade {

// Passes everything on to the inner hook, except name() and reduce(), which each wrapper
// writes itself.
class BRIGADE_API HookWrapper : public Hook {
 public:
  // Throws ConfigError if there is no inner hook.
  explicit HookWrapper(std::shared_ptr<Hook> inner);

  // The wrapper's name and the inner hook's fingerprint. A wrapper whose name does not tell
  // all of its options overrides it, and includes the inner one.
  std::string fingerprint() const override;
  void set_parameters(std::span<const std::string> names) override;
  void begin_pass(const HookPass& pass) override;
  bool takes_sparse() const override;
  HookState state() const override;
  void load_state(const HookState& state) override;
  void reset() override;
  void check_dtype(at::ScalarType dtype) const override;
  std::vector<std::string> history() const override;

 protected:
  Hook& inner() const { return *inner_; }
  // Gives what the inner hook makes of the bucket. If the bucket is sparse and the inner
  // hook does not take such, gives the mean. REQUIRES: the wrapper awaits as often before
  // it for every bucket (Comm::sit_out where there is nothing to send), so that the inner
  // hook's stretches come in the buckets' order on one thread.
  Task<at::Tensor> reduce_inner(Bucket bucket, Comm& comm) const;

  // A result that is still to be multiplied with `scale`.
  struct Undivided {
    at::Tensor result;
    double scale = 1;
  };
  // As reduce_inner, for wrappers that touch every gradient anyway. If the inner hook is
  // the plain mean, returns the undivided sum and a scale. The bits are those of the mean,
  // except at the ends of the number range.
  Task<Undivided> reduce_inner_undivided(Bucket bucket, Comm& comm) const;

 private:
  const std::shared_ptr<Hook> inner_;
};

// Dense buckets of floating-point gradients come to `inner` as `dtype`, and its result is
// cast back in place; others come as they are. Named `before`, the inner name, `after`.
BRIGADE_API std::shared_ptr<Hook> in_dtype(at::ScalarType dtype,
                                           std::shared_ptr<Hook> inner, std::string before,
                                           std::string after);

}  // namespace brigade
