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
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/process_group.h"

namespace brigade {

// ---- Tensors in results -----------------------------------------------------------------
//
// collect_tensors finds the tensors in the result of a module's forward().

namespace detail {

void collect_tensors() = delete;  // so that the lookup below finds users' overloads only

template <class T>
concept UserCollectable = requires(T& value, std::vector<at::Tensor*>& found) {
  collect_tensors(value, found);
};
template <class T>
concept MapLike = requires(T& value) {
  typename T::mapped_type;
  value.begin();
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
// Types that hold no tensor and may be beside one.
template <class T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, std::nullopt_t>;
template <class>
inline constexpr bool kUnsupported = false;

// Whether the tensors in a copy of a T can be replaced: T holds tensors, and
// collect_tensors takes it.
template <class T>
constexpr bool holds_tensors() {
  if constexpr (std::is_same_v<T, at::Tensor> || UserCollectable<T>) {
    return true;
  } else if constexpr (PlainValue<T>) {
    return false;
  } else if constexpr (kIsOptional<T>) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (MapLike<T>) {
    return holds_tensors<typename T::mapped_type>();
  } else if constexpr (std::ranges::range<T>) {
    using Element = std::remove_reference_t<std::ranges::range_reference_t<T>>;
    if constexpr (std::is_const_v<Element> || std::is_same_v<Element, T>) {
      return false;
    } else {
      return holds_tensors<Element>();
    }
  } else if constexpr (TupleLike<T>) {
    return []<size_t... I>(std::index_sequence<I...>) {
      constexpr auto suits = []<class E>(std::type_identity<E>) {
        return PlainValue<E> || holds_tensors<E>();
      };
      return (suits(std::type_identity<std::tuple_element_t<I, T>>{}) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else {
    return false;
  }
}

struct CollectTensors {
  template <class T>
  void operator()(T& value, std::vector<at::Tensor*>& found) const {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      found.push_back(&value);
    } else if constexpr (UserCollectable<T>) {
      collect_tensors(value, found);
    } else if constexpr (PlainValue<T>) {
      // nothing in it
    } else if constexpr (kIsOptional<T>) {
      if (value) (*this)(*value, found);
    } else if constexpr (MapLike<T>) {
      for (auto& [key, mapped] : value) (*this)(mapped, found);
    } else if constexpr (std::ranges::range<T>) {
      if constexpr (!PlainValue<std::ranges::range_value_t<T>>) {
        for (auto& element : value) (*this)(element, found);
      }
    } else if constexpr (TupleLike<T>) {
      std::apply([&](auto&... element) { ((*this)(element, found), ...); }, value);
    } else {
      static_assert(
          kUnsupported<T>,
          "brigade cannot find the tensors in this type, which forward() returns. "
          "Write, in the namespace of the type: void collect_tensors(TheType& value, "
          "std::vector<at::Tensor*>& found), which calls "
          "brigade::collect_tensors(member, found) for every member that holds "
          "tensors.");
    }
  }
};

}  // namespace detail

// collect_tensors(value, found) appends the address of every tensor in `value`: a tensor, a
// tuple, pair, array, vector or other range, map, optional, any nesting of these, or a type
// with an overload of its own, found by argument-dependent lookup:
//
//   struct Output { at::Tensor logits; std::optional<at::Tensor> attention; };
//   void collect_tensors(Output& output, std::vector<at::Tensor*>& found) {
//     brigade::collect_tensors(output.logits, found);
//     brigade::collect_tensors(output.attention, found);
//   }
//
// Any other type does not compile. The order must be the same in every call.
inline constexpr detail::CollectTensors collect_tensors{};

// ---- SyncBatchNorm ----------------------------------------------------------------------
//
// Batch normalization over the batches of all ranks, as if they were one: for small batches
// a rank, where each rank's own mean and variance would be too rough.
//
//   torch::nn::Sequential net(torch::nn::Conv2d(…), torch::nn::BatchNorm2d(64), …);
//   brigade::convert_sync_batchnorm(*net, group);
//   brigade::DistributedDataParallel ddp(net, group);

// Takes inputs (batch, features, …) like BatchNorm1d, 2d and 3d, with their options and
// names of parameters and buffers. While training, its results, forward and backward, are
// those of one process with the joined batch; otherwise it uses the running statistics. The
// gradients of weight and bias are of this rank's batch; DistributedDataParallel averages
// them. Batches may differ in size between ranks, and may be empty. Each forward and each
// backward pass is collective, and adds one all-reduce of 2 × features + 1 numbers.
class BRIGADE_API SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // Collective. Makes connections of its own, so that its messages need no common order
  // with those of a model's buckets.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const ProcessGroup& group);
  // Makes the layer over a group that only such layers use.
  struct OwnGroup {
    ProcessGroup group;
  };
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, OwnGroup group);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& input);

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    // undefined unless affine
  at::Tensor running_mean, running_var, num_batches_tracked;  // undefined unless tracked

 private:
  at::Tensor normalize_by_batch(const at::Tensor& input);

  ProcessGroup group_;
};
TORCH_MODULE(SyncBatchNorm);

// Collective. Replaces each BatchNorm1d, 2d and 3d inside of `model`, at any depth, by a
// SyncBatchNorm with the same parameters and buffers. A layer can be replaced in a
// Sequential or a ModuleList. Throws ConfigError, before anything is changed, if a module
// of another class holds one: C++ fixes the type of such a member; make it a SyncBatchNorm
// there. Returns the number of layers replaced. To be called before the model is wrapped
// and before an optimizer is made.
BRIGADE_API int convert_sync_batchnorm(torch::nn::Module& model, const ProcessGroup& group);

// Backward passes of forward passes within its lifetime only accumulate; the first one
// after it synchronises the sum.
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
// An argument of forward(), given as T&&: a copy that may be changed if it holds tensors,
// else the argument itself.
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
// so parameters(), buffers(), train(), to() and torch::save reach it. Move the model to its
// device first; afterwards, do not change its parameters, or which of them need gradients.
template <class M>
class DistributedDataParallelImpl : public torch::nn::Module {
 public:
  // Collective; DdpCore describes its checks and errors.
  DistributedDataParallelImpl(std::shared_ptr<M> module, ProcessGroup group,
                              DdpOptions options = {})
      : torch::nn::Module("DistributedDataParallel"),
        module_(register_module("module", std::move(module))),
        core_(describe_model(*module_), std::move(group), std::move(options)) {}

  // Calls the wrapped module's forward. brigade::collect_tensors must accept its result.
  // With mixed precision, forward gets cast copies of the arguments that hold tensors;
  // arguments of a type that collect_tensors does not know are not changed.
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

  // Sets how gradients are reduced; see DdpCore. ddp->set_hook(make_hook("fp16"))
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

// The module's holder, as torch::nn::Linear is for LinearImpl. It is made from a module
// holder or a shared pointer to a module; the type in angle brackets is deduced.
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

  // The base class's operator cannot deduce the result of a forward template.
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
