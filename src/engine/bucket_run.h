// The run of one bucket through a hook.
#pragma once
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <coroutine>
#include <memory>
#include <optional>

#include "brigade/hook.h"
#include "engine/pipeline.h"
#include "engine/step_stats.h"
#include "engine/trace.h"

namespace brigade::engine {

class DeviceLanes;
class Engine;
class AllToAllMessages;
// The bytes of a tensor; for a sparse one, of values and indices.
int64_t payload_bytes(const at::Tensor& tensor);
// The bucket's name in errors.
std::string describe_bucket(const Hook& hook, int64_t index, int64_t step);
// Throws unless a hook's result can replace the gradients in the buffer.
void check_result(const at::Tensor& result, const at::Tensor& buffer);
// Whether the caller is a hook run by this engine.
bool runs_hook_here(const Engine& engine);

// The coroutine at the bottom of a bucket's stack, or of one of its lanes. It catches
// everything itself.
struct Root {
  struct promise_type {
    Root get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
  std::coroutine_handle<> coroutine;
};

// Owned by the engine while it is outstanding, and by the callback that will resume it; its
// coroutines end with it.
class BucketRun : public std::enable_shared_from_this<BucketRun> {
 public:
  BucketRun(std::shared_ptr<Engine> engine, std::shared_ptr<Pipeline> pipeline,
            std::shared_ptr<Hook> hook, Bucket bucket, uint32_t ticket, int64_t step);
  ~BucketRun();
  BucketRun(const BucketRun&) = delete;
  BucketRun& operator=(const BucketRun&) = delete;

  std::coroutine_handle<> first_stretch() const { return root_.coroutine; }
  // The coroutine continues at `station`, when the station serves the lane and the awaited
  // operation, if any, is complete. Another thread may resume it before this returns.
  void resume_at(size_t station, const Order& order, std::coroutine_handle<> coroutine,
                 std::shared_ptr<AllToAllMessages> awaited = nullptr);
  // Runs the next stage on this thread, unless the bucket has failed meanwhile.
  void resume(std::coroutine_handle<> coroutine, size_t station, const Order& order);
  // Completes the future with an error, unless it is complete.
  void fail(std::exception_ptr error);

  // Records an event of the lane `order` if tracing is on.
  void note(TraceEvent::Kind kind, size_t station, const Order& order,
            Clock::time_point begin, int64_t bytes = 0,
            Clock::time_point end = Clock::now());
  // The same for lanes that have streams of their own: an event from one point of the
  // current stream to another. Null: tracing is off.
  DevicePoint device_point() const;
  void note(TraceEvent::Kind kind, size_t station, const Order& order, DevicePoint begin,
            DevicePoint end, int64_t bytes = 0);

  std::string describe() const;  // "hook 'fp16', bucket 3, step 17"

  const std::shared_ptr<Engine> engine;
  const std::shared_ptr<Pipeline> pipeline;
  const std::shared_ptr<Hook> hook;
  Bucket bucket;
  const uint32_t ticket;
  const int64_t step;
  const Clock::time_point started = Clock::now();
  const c10::intrusive_ptr<c10::ivalue::Future> future;
  // Set for CUDA buckets: the stream on which the hook computes; if lanes have streams of
  // their own, that of the bucket's first lane.
  std::optional<c10::Stream> stream;
  DeviceLanes* device_lanes = nullptr;  // the engine's; null: lanes share the stream

  BucketCost cost;

 private:
  TraceEvent event(TraceEvent::Kind kind, size_t station, const Order& order,
                   int64_t bytes) const;
  Root drive();
  void succeed(const at::Tensor& result);

  Comm::Lane* const lane_;  // comm_ owns it
  Comm comm_;
  Root root_;
  std::atomic<bool> done_ = false;
};

}  // namespace brigade::engine
