// Error feedback for whole buckets. Errors are kept by parameter, so that they survive the
// rebuilding of buckets.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "brigade/hook.h"
#include "codec/codec.h"

namespace brigade {

// Only one thread may use it: before a hook's first co_await, or between steps.
class ErrorMemory {
 public:
  // Returns the errors of the bucket's parameters, as float32 tensors of the buffer's
  // length, at first zero. The caller must write every value of `next`; it is kept for the
  // next step. `next` is the same memory as `last`, unless commit() was called since the
  // last call. `division` says how the values are divided among the ranks, for
  // Residuals::moved; hooks that do not divide them need none.
  Residuals of(const Bucket& bucket, const std::string& division = "");

  void save(HookState& state) const;
  void load(const HookState& state);
  // These do what RevertibleHook says. The first commit() doubles the memory.
  void commit();
  void revert();

 private:
  struct Flat {
    at::Tensor now;
    at::Tensor other;      // the last commit()'s values if it was written since
    bool written = false;  // since the last commit()
    const at::Tensor& committed() const { return written ? other : now; }
  };
  // The location of a parameter's errors.
  struct Slice {
    std::shared_ptr<Flat> flat;
    int64_t begin = 0;
    int64_t length = 0;
    at::Tensor in(const at::Tensor& whole) const { return whole.narrow(0, begin, length); }
  };
  bool fits(const Bucket& bucket, const std::shared_ptr<Flat>& flat) const;
  std::shared_ptr<Flat> assemble(const Bucket& bucket);
  Residuals in(Flat& flat) const;

  std::map<std::string, Slice> errors_;
  // By the name of the bucket's first parameter.
  std::map<std::string, std::shared_ptr<Flat>> flat_;
  std::map<std::string, std::string> division_;
  bool reverts_ = false;
};

}  // namespace brigade
