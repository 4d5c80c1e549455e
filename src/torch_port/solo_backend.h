// A process group of one: every collective is the identity and ends at once; no port is
// opened.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace brigade::torch_port {

// Serves CPU and CUDA tensors, and has all operations of c10d's Reducer. Work and future
// are complete when a call returns; on CUDA the copies are queued on the current stream, as
// with NCCL.
c10::intrusive_ptr<c10d::ProcessGroup> make_solo_group(
    c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout);

}  // namespace brigade::torch_port
