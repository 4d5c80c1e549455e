// Gives futures of Python's hooks a time limit: a Reducer waits for them without one.
#pragma once
#include <ATen/core/ivalue.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "native_hook.h"

namespace brigade::python {

// Thread-safe. Has a thread, which the first future starts.
class FutureLimit : public Closeable {
 public:
  FutureLimit();
  ~FutureLimit() override;
  // Returns the tensor in a future's value; an exception becomes the future's error.
  using Parse = std::function<at::Tensor(const c10::IValue& value)>;
  // Returns a future of a tensor that completes as `future` does, or, once `limit` has
  // passed, with a HookError of that text.
  FuturePtr watch(const FuturePtr& future, Parse parse, std::chrono::milliseconds limit,
                  std::string late);
  void close() override;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace brigade::python
