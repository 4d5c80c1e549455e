#include "engine/bucket_run.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include "engine/comm/all_to_all_messages.h"
#include "engine/comm/device_lanes.h"
#include "engine/comm/lane.h"
#include "engine/engine.h"

namespace brigade::engine {

int64_t payload_bytes(const at::Tensor& tensor) {
  if (!tensor.is_sparse()) return static_cast<int64_t>(tensor.nbytes());
  return payload_bytes(tensor._values()) + payload_bytes(tensor._indices());
}

namespace {

c10::intrusive_ptr<c10::ivalue::Future> make_future(const at::Tensor& buffer) {
  std::vector<c10::Device> devices;
  if (!buffer.device().is_cpu()) devices.push_back(buffer.device());
  return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
}

// The engine that runs a hook on this thread now.
thread_local const Engine* running_here = nullptr;

class Running {
 public:
  explicit Running(const Engine& engine) : before_(std::exchange(running_here, &engine)) {}
  ~Running() { running_here = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const Engine* const before_;
};

}  // namespace

void check_result(const at::Tensor& result, const at::Tensor& buffer) {
  if (!result.defined()) throw Error("the hook gave back no tensor");
  if (result.dtype() == buffer.dtype() && result.device() == buffer.device() &&
      result.numel() == buffer.numel()) {
    return;
  }
  const auto text = [](const at::Tensor& tensor) {
    return c10::str(tensor.numel(), " elements of ", tensor.dtype(), " on ",
                    tensor.device());
  };
  throw Error("the hook gave back " + text(result) + ", but the bucket has " +
              text(buffer));
}

bool runs_hook_here(const Engine& engine) { return running_here == &engine; }

BucketRun::BucketRun(std::shared_ptr<Engine> engine, std::shared_ptr<Pipeline> pipeline,
                     std::shared_ptr<Hook> hook, Bucket bucket, uint32_t ticket,
                     int64_t step)
    : engine(std::move(engine)),
      pipeline(std::move(pipeline)),
      hook(std::move(hook)),
      bucket(std::move(bucket)),
      ticket(ticket),
      step(step),
      future(make_future(this->bucket.buffer())),
      cost(payload_bytes(this->bucket.buffer()), started),
      lane_(new Comm::Lane{*this, Order{ticket}}),
      comm_(std::unique_ptr<Comm::Lane>(lane_)),
      root_(drive()) {}

BucketRun::~BucketRun() { root_.coroutine.destroy(); }

void BucketRun::resume_at(size_t station, const Order& order,
                          std::coroutine_handle<> coroutine,
                          std::shared_ptr<AllToAllMessages> awaited) {
  Visit visit;
  visit.run = [run = shared_from_this(), coroutine, station, awaited](const Order& order) {
    if (awaited && !awaited->complete()) return;
    run->resume(coroutine, station, order);
  };
  if (awaited) visit.interrupt = [awaited] { awaited->abort(); };
  const auto kept = pipeline;  // the bucket may end meanwhile
  kept->arrive(station, order, std::move(visit));
}

void BucketRun::resume(std::coroutine_handle<> coroutine, size_t station,
                       const Order& order) {
  if (done_) return;
  const auto begin = Clock::now();
  cost.stretch_began(begin);
  try {
    const Running running(*engine);
    at::NoGradGuard no_graph;  // a hook computes with parameters, too
    std::optional<c10::StreamGuard> guard;
    if (stream) guard.emplace(*stream);
    const OnDeviceLanes on_lanes(device_lanes);
    if (engine->runs_inline()) lane_->begin_stage_inline();
    coroutine.resume();
  } catch (...) {  // errors from outside of the hook, which catches its own
    return engine->ended(*this, std::current_exception());
  }
  note(TraceEvent::Kind::compute, station, order, begin);
  cost.stretch_ended(begin);
}

TraceEvent BucketRun::event(TraceEvent::Kind kind, size_t station, const Order& order,
                            int64_t bytes) const {
  return {.kind = kind,
          .station = static_cast<int>(station),
          .step = step,
          .bucket = bucket.index(),
          .lane = order.size() > 1 ? static_cast<int>(order.back()) : -1,
          .bytes = bytes,
          .ready = started};
}

void BucketRun::note(TraceEvent::Kind kind, size_t station, const Order& order,
                     Clock::time_point begin, int64_t bytes, Clock::time_point end) {
  if (!engine->trace().recording() || device_lanes) return;
  TraceEvent noted = event(kind, station, order, bytes);
  noted.begin = begin;
  noted.end = end;
  engine->trace().add(noted);
}

DevicePoint BucketRun::device_point() const {
  if (!device_lanes || !engine->trace().recording()) return nullptr;
  return engine->trace().point(device_lanes->device());
}

void BucketRun::note(TraceEvent::Kind kind, size_t station, const Order& order,
                     DevicePoint begin, DevicePoint end, int64_t bytes) {
  if (!begin || !end) return;
  engine->trace().add(event(kind, station, order, bytes), std::move(begin), std::move(end));
}

Root BucketRun::drive() {
  // Copies of a bucket share their buffer; the hook's set_buffer must not change the tensor
  // that the result is compared with.
  const at::Tensor buffer = bucket.buffer();
  std::exception_ptr error;
  try {
    at::Tensor result = co_await hook->reduce(bucket, comm_);
    check_result(result, buffer);
    succeed(result);
  } catch (...) {
    error = std::current_exception();
  }
  if (error) engine->ended(*this, error);
}

void BucketRun::succeed(const at::Tensor& result) {
  pipeline->pass(lane_->order, lane_->station + 1);
  lane_->end_stretch_inline();
  if (done_.exchange(true)) return;
  try {
    engine->ended(*this, nullptr);
    future->markCompleted(c10::IValue(result));
  } catch (...) {
    done_ = future->completed();  // if not, fail() can still complete it
    throw;
  }
}

void BucketRun::fail(std::exception_ptr error) {
  if (done_.exchange(true)) return;
  future->setError(std::move(error));
}

std::string describe_bucket(const Hook& hook, int64_t index, int64_t step) {
  return "hook '" + hook.name() + "', bucket " + std::to_string(index) + ", step " +
         std::to_string(step);
}

std::string BucketRun::describe() const {
  return describe_bucket(*hook, bucket.index(), step);
}

}  // namespace brigade::engine
