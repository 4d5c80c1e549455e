#include "torch_port/solo_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace brigade::torch_port {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// The future must know the CUDA devices of its tensors, or it cannot order streams behind
// them.
std::vector<c10::Device> devices_of(const Tensors& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    c10::Device device = tensor.device();
    if (!device.is_cpu() &&
        std::find(devices.begin(), devices.end(), device) == devices.end()) {
      devices.push_back(device);
    }
  }
  return devices;
}

class DoneWork : public c10d::Work {
 public:
  DoneWork(c10d::OpType op, Tensors outputs) : Work(0, op), outputs_(std::move(outputs)) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices_of(outputs_));
    future_->markCompleted(c10::IValue(outputs_));
    finish();
  }
  Tensors result() override { return outputs_; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

WorkPtr done(c10d::OpType op, Tensors outputs) {
  return c10::make_intrusive<DoneWork>(op, std::move(outputs));
}

// Copies unless the two are the same memory, as they are in an in-place collective.
void copy(at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.numel() == from.numel(), "a group of one: output has ", to.numel(),
              " elements, input ", from.numel(), "; expected as many");
  if (!to.is_alias_of(from) || to.data_ptr() != from.data_ptr()) to.copy_(from.view_as(to));
}

void check_root(int64_t root) {
  TORCH_CHECK(root == 0, "a group of one: root rank ", root, "; expected 0");
}

void check_reduction(const c10d::ReduceOp& op) {
  TORCH_CHECK(op.op_ != c10d::ReduceOp::PREMUL_SUM,
              "a group of one does not know PREMUL_SUM; multiply before the reduction");
}

// outputs[i] is the list of all ranks' i-th tensors, so it has one.
WorkPtr gather_into(c10d::OpType op, std::vector<Tensors>& outputs, const Tensors& inputs) {
  Tensors flat;
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK(outputs[i].size() == 1, "a group of one: ", outputs[i].size(),
                " outputs for an input; expected 1");
    copy(outputs[i][0], inputs.at(i));
    flat.push_back(outputs[i][0]);
  }
  return done(op, std::move(flat));
}

WorkPtr scatter_from(c10d::OpType op, Tensors& outputs,
                     const std::vector<Tensors>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) copy(outputs[i], inputs.at(i).at(0));
  return done(op, outputs);
}

WorkPtr copy_all(c10d::OpType op, Tensors& outputs, const Tensors& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) copy(outputs[i], inputs.at(i));
  return done(op, outputs);
}

class SoloBackend : public c10d::Backend {
 public:
  explicit SoloBackend(std::chrono::milliseconds timeout)
      : Backend(0, 1), options_(c10::make_intrusive<Options>("solo", timeout)) {}

  const std::string getBackendName() const override { return "solo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void startCoalescing() override {}
  WorkPtr endCoalescing() override { return done(c10d::OpType::COALESCED, {}); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    check_root(options.rootRank);
    return count(done(c10d::OpType::BROADCAST, tensors));
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    check_reduction(options.reduceOp);
    return count(done(c10d::OpType::ALLREDUCE, tensors));
  }
  WorkPtr allreduce_sparse(Tensors& tensors,
                           const c10d::AllreduceOptions& options) override {
    check_reduction(options.reduceOp);
    return count(done(c10d::OpType::_ALLREDUCE_SPARSE, tensors));
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    check_reduction(options.reduceOp);
    return count(done(c10d::OpType::ALLREDUCE_COALESCED, tensors));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    check_root(options.rootRank);
    check_reduction(options.reduceOp);
    return count(done(c10d::OpType::REDUCE, tensors));
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions&) override {
    return count(gather_into(c10d::OpType::ALLGATHER, outputs, inputs));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    copy(output, input);
    return count(done(c10d::OpType::_ALLGATHER_BASE, {output}));
  }
  // c10d gives outputs by rank here, not by tensor.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions&) override {
    return count(copy_all(c10d::OpType::ALLGATHER_COALESCED, outputs.at(0), inputs));
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions&) override {
    return count(copy_all(c10d::OpType::COALESCED, outputs, inputs));
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    check_root(options.rootRank);
    return count(gather_into(c10d::OpType::GATHER, outputs, inputs));
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    check_root(options.rootRank);
    return count(scatter_from(c10d::OpType::SCATTER, outputs, inputs));
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    check_reduction(options.reduceOp);
    return count(scatter_from(c10d::OpType::REDUCE_SCATTER, outputs, inputs));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    check_reduction(options.reduceOp);
    copy(output, input);
    return count(done(c10d::OpType::_REDUCE_SCATTER_BASE, {output}));
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override {
    check_reduction(options.reduceOp);
    return count(copy_all(c10d::OpType::COALESCED, outputs, inputs));
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                        std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    copy(output, input);
    return count(done(c10d::OpType::ALLTOALL_BASE, {output}));
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions&) override {
    return count(copy_all(c10d::OpType::ALLTOALL, outputs, inputs));
  }

  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return count(done(c10d::OpType::BARRIER, {}));
  }
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override {}

 private:
  WorkPtr count(WorkPtr work) {
    ++sequence_;
    return work;
  }

  c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_solo_group(
    c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout) {
  using Group = c10d::ProcessGroup;
  auto backend = c10::make_intrusive<SoloBackend>(timeout);
  auto group = c10::make_intrusive<Group>(std::move(store), 0, 1);
  group->setBackend(c10::DeviceType::CPU, Group::BackendType::CUSTOM, backend);
  group->setBackend(c10::DeviceType::CUDA, Group::BackendType::CUSTOM, backend);
  group->setDefaultBackend(Group::BackendType::CUSTOM);
  return group;
}

}  // namespace brigade::torch_port
