// Gives the futures of Python's hooks a time limit: a Reducer waits for them without one.
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

// Thread-safe. Has a thread, started by the first future.
class FutureLimit : public Closeable {
 public:
  FutureLimit();
  ~FutureLimit() override;
  // Gives the tensor of a future's value; what it throws is the future's error.
  using Parse = std::function<at::Tensor(const c10::IValue& value)>;
  // A future of a tensor that completes as `future` does, or, once `limit` has passed, with
  // a HookError of that text.
  FuturePtr watch(const FuturePtr& future, Parse parse, std::chrono::milliseconds limit,
                  std::string late);
  void close() override;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace brigade::python
