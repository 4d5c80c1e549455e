// Error feedback for whole buckets. It is kept by parameter, so that it survives the
// rebuilding of buckets.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "brigade/hook.h"
#include "codec/codec.h"

namespace brigade {

// To be used by one thread: before a hook's first co_await, or between steps.
class ErrorMemory {
 public:
  // The errors of the bucket's parameters, as float32 tensors of the buffer's length. They
  // are zero at first. What is written into `next` is kept for the next step; every value
  // must be. It is the same memory as `last`, unless commit() was called since the last
  // call. `division`: how the values are divided among the ranks, for Residuals::moved;
  // hooks that do not divide them need none.
  Residuals of(const Bucket& bucket, const std::string& division = "");

  void save(HookState& state) const;
  void load(const HookState& state);
  // As those of RevertibleHook. After the first commit() there is twice as much memory.
  void commit();
  void revert();

 private:
  struct Flat {
    at::Tensor now;
    at::Tensor other;      // as of the last commit() if it was written since
    bool written = false;  // since the last commit()
    const at::Tensor& committed() const { return written ? other : now; }
  };
  // Where the errors of a parameter are.
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
  // By the name of the first parameter.
  std::map<std::string, std::shared_ptr<Flat>> flat_;
  std::map<std::string, std::string> division_;
  bool reverts_ = false;
};

}  // namespace brigade
