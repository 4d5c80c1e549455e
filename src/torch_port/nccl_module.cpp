// libbrigade_nccl.so: the only file with NCCL's names. See nccl_backend.h.
#define USE_C10D_NCCL
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <stdlib.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "torch_port/nccl_backend.h"

namespace brigade::torch_port {
namespace {

// NCCL's watchdog waits longer than the group's time limit by this, because the engine's
// error, at that limit, says more.
constexpr std::chrono::seconds kSlack{3};

// Sets an environment variable while it lives. Launchers set some for all groups of a
// process; torch reads them when a group is made.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* before = getenv(name)) before_ = before;
    setenv(name, value, /*overwrite=*/1);
  }
  ~Setting() {
    if (before_)
      setenv(name_, before_->c_str(), /*overwrite=*/1);
    else
      unsetenv(name_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

c10::intrusive_ptr<c10d::Backend> make(c10::intrusive_ptr<c10d::Store> store, int rank,
                                       int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout + kSlack;
  // By default torch ends the process when a collective fails, and first delays every
  // collective by a minute to write a dump. With this it only aborts the communicator, at
  // once: waiting ends, and the next collective throws.
  const Setting only_abort("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  const Setting no_dump("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  const Setting at_once("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0");
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size, options);
  backend->setSequenceNumberForGroup();
  return backend;
}

bool current_stream_is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
         c10::cuda::CaptureStatus::None;
}

// Events of a graph that is being recorded cannot be queried; they count as not reached.
bool is_reached(const c10::Event& event) {
  const c10::cuda::CUDAGuard device(event.device());
  // Otherwise the query would break another thread's recording.
  const c10::cuda::CUDAStreamCaptureModeGuard mode(cudaStreamCaptureModeThreadLocal);
  const cudaError_t found =
      C10_CUDA_ERROR_HANDLED(cudaEventQuery(static_cast<cudaEvent_t>(event.eventId())));
  if (found == cudaErrorNotReady || found == cudaErrorStreamCaptureUnsupported) {
    (void)cudaGetLastError();
    return false;
  }
  C10_CUDA_CHECK(found);
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const NcclModule* brigade_nccl_module() {
  static const NcclModule module{kNcclModuleBuild, make, current_stream_is_capturing,
                                 is_reached};
  return &module;
}

}  // namespace brigade::torch_port
