// SPDX-License-Identifier: BSD-3-Clause
// Trains one model on many processes: each has a copy and its own share of the data, and
// backward() leaves in every copy the mean of all copies' gradients.
//
//   Net net;
//   brigade::DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = true});
//   torch::optim::SGD optimizer(ddp->parameters(), 0.1);
//   ddp->zero_grad();
//   loss(ddp->forward(data), target).backward();
//   optimizer.step();
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "brigade/collect_tensors.h"
#include "brigade/ddp_core.h"
#include "brigade/export.h"

namespace brigade {

// Backward passes of forward passes within its lifetime only accumulate; the first one
// after it synchronises what has accumulated.
class BRIGADE_API [[nodiscard]] NoSync {
 public:
  explicit NoSync(DdpCore& core) : core_(&core), before_(core.gradient_sync()) {
    core_->set_gradient_sync(false);
  }
  NoSync(NoSync&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), before_(other.before_) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (core_) core_->set_gradient_sync(before_);
  }

 private:
  DdpCore* core_;
  bool before_;
};

namespace detail {
// An argument of forward(), given as T&&: a copy of it that may be changed where it holds
// tensors, else the argument itself.
template <class T>
class Argument {
  using Value = std::remove_cvref_t<T>;

 public:
  static constexpr bool kCopied = holds_tensors<Value>() && std::copy_constructible<Value>;
  explicit Argument(std::remove_reference_t<T>& given) : value_(given) {}
  void collect(std::vector<at::Tensor*>& found) {
    if constexpr (kCopied) brigade::collect_tensors(value_, found);
  }
  T&& get() { return static_cast<T&&>(value_); }

 private:
  std::conditional_t<kCopied, Value, std::remove_reference_t<T>&> value_;
};
}  // namespace detail

// The module behind DistributedDataParallel. It owns the wrapped one as its child "module",
// so parameters(), buffers(), train(), to() and torch::save reach it. Wrap a model that is
// on its device already, and do not change which parameters it has, or which need
// gradients, afterwards.
template <class M>
class DistributedDataParallelImpl : public torch::nn::Module {
 public:
  // Collective; see DdpCore for what it checks and throws.
  DistributedDataParallelImpl(std::shared_ptr<M> module, ProcessGroup group,
                              DdpOptions options = {})
      : torch::nn::Module("DistributedDataParallel"),
        module_(register_module("module", std::move(module))),
        core_(describe_model(*module_), std::move(group), std::move(options)) {}

  // Calls the wrapped module's forward. brigade::collect_tensors must find the tensors in
  // what it returns. With mixed precision, forward gets cast copies of the arguments that
  // hold tensors; arguments of a type that collect_tensors does not know are passed on as
  // they are.
  template <class... Args>
  auto forward(Args&&... args) {
    core_.before_forward();
    try {
      auto result = core_.casts_arguments() ? forward_cast(std::forward<Args>(args)...)
                                            : module_->forward(std::forward<Args>(args)...);
      std::vector<at::Tensor*> tensors;
      if (core_.wants_results()) collect_tensors(result, tensors);
      core_.after_forward(tensors);
      return result;
    } catch (...) {
      core_.forward_failed();
      throw;
    }
  }

  // Works with bucket views too.
  void zero_grad(bool set_to_none = true) override {
    brigade::zero_grad(parameters(), set_to_none);
  }

  // auto guard = ddp->no_sync();
  NoSync no_sync() { return NoSync(core_); }

  // Collective. For ranks with different numbers of batches: runs `loop`, which trains on
  // this rank's batches, then takes part in the others' collectives until all have ended.
  void join(const std::function<void()>& loop, const JoinOptions& options = {}) {
    core_.join(loop, options);
  }

  // How gradients are reduced; see DdpCore. ddp->set_hook(make_hook("fp16"))
  void set_hook(std::shared_ptr<Hook> hook, ProcessGroup group = {}) {
    core_.set_hook(std::move(hook), std::move(group));
  }
  const std::shared_ptr<Hook>& hook() const { return core_.hook(); }
  HookStats hook_stats() const { return core_.hook_stats(); }

  void update_process_group(ProcessGroup group) {
    core_.update_process_group(std::move(group));
  }
  void sync_buffers() { core_.sync_buffers(); }
  void remove_autograd_hooks() { core_.remove_autograd_hooks(); }
  void reset() { core_.reset(); }
  DdpLoggingData logging_data() const { return core_.logging_data(); }
  const ProcessGroup& group() const { return core_.group(); }

  const std::shared_ptr<M>& module() const { return module_; }
  DdpCore& core() { return core_; }

 private:
  template <class... Args>
  auto forward_cast(Args&&... args) {
    std::tuple<detail::Argument<Args>...> cast(args...);
    return std::apply(
        [this](auto&... each) {
          std::vector<at::Tensor*> tensors;
          (each.collect(tensors), ...);
          core_.cast_arguments(tensors);
          return module_->forward(each.get()...);
        },
        cast);
  }

  std::shared_ptr<M> module_;
  DdpCore core_;
};

namespace detail {
template <class Holder, class M>
concept HolderOf = std::same_as<typename Holder::ContainedType, M>;
}

// The holder of it, as torch::nn::Linear is for LinearImpl. Made from a module holder or a
// shared pointer to a module; the type in angle brackets is deduced.
template <class M>
class DistributedDataParallel
    : public torch::nn::ModuleHolder<DistributedDataParallelImpl<M>> {
  using Base = torch::nn::ModuleHolder<DistributedDataParallelImpl<M>>;

 public:
  using Impl = DistributedDataParallelImpl<M>;

  DistributedDataParallel(std::nullptr_t) : Base(nullptr) {}
  DistributedDataParallel(std::shared_ptr<Impl> impl) : Base(std::move(impl)) {}
  DistributedDataParallel(std::shared_ptr<M> module, ProcessGroup group,
                          DdpOptions options = {})
      : Base(std::make_shared<Impl>(std::move(module), std::move(group),
                                    std::move(options))) {}
  template <detail::HolderOf<M> Holder>
  DistributedDataParallel(const Holder& module, ProcessGroup group, DdpOptions options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), std::move(options)) {}

  // The base's own cannot deduce what a forward template returns.
  template <class... Args>
  auto operator()(Args&&... args) {
    return this->get()->forward(std::forward<Args>(args)...);
  }
};

template <std::derived_from<torch::nn::Module> M>
DistributedDataParallel(std::shared_ptr<M>, ProcessGroup, DdpOptions = {})
    -> DistributedDataParallel<M>;
template <class Holder, class M = typename Holder::ContainedType>
DistributedDataParallel(const Holder&, ProcessGroup, DdpOptions = {})
    -> DistributedDataParallel<M>;

}  // namespace brigade
