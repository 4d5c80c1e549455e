// Vocabulary. A rank's *moments* are its number of values, their mean, and the sum of their
// squared distances from it. They give the moments of all ranks without loss (Chan).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

#include "brigade/distributed_data_parallel.h"
#include "brigade/error.h"

namespace brigade {
namespace {

namespace nn = torch::nn;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns all dimensions except that of the features.
std::vector<int64_t> batch_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// Returns a view of shape (1, features, 1, …).
at::Tensor along_features(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// Sums have at least float's precision.
at::ScalarType sum_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Moments {
  double count = 0;
  at::Tensor mean, squares;  // for each feature
};

Moments moments_of(const at::Tensor& values) {
  const int64_t features = values.size(1);
  const int64_t each = values.numel() / features;
  Moments own;
  own.count = static_cast<double>(each);
  if (values.numel() == 0) {
    own.mean = own.squares = at::zeros({features}, values.options());
    return own;
  }
  own.mean = values.mean(batch_dims(values));
  own.squares =
      (values - along_features(own.mean, values)).square().sum(batch_dims(values));
  return own;
}

// Collective.
Moments join_moments(const ProcessGroup& group, const Moments& own) {
  const int64_t features = own.mean.numel();
  at::Tensor mine =
      at::cat({own.mean, own.squares, at::full({1}, own.count, own.mean.options())});
  const at::Tensor all = at::stack(group.all_gather(mine));
  const at::Tensor counts = all.narrow(1, 2 * features, 1);
  const at::Tensor means = all.narrow(1, 0, features);
  const at::Tensor total = counts.sum();
  Moments joined;
  joined.count = total.item<double>();
  joined.mean = (means * counts).sum(0) / total;
  joined.squares = all.narrow(1, features, features).sum(0) +
                   ((means - joined.mean).square() * counts).sum(0);
  return joined;
}

// Computes y = (x - mean) / std of the joined batch. Gradients of both reach all ranks.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const Moments& joined, double eps, const ProcessGroup& group) {
    const at::Tensor scale = (joined.squares / joined.count + eps).rsqrt();
    at::Tensor normal =
        (input - along_features(joined.mean, input)) * along_features(scale, input);
    context->save_for_backward({normal, scale});
    context->saved_data["count"] = joined.count;
    group_of(context) = group;
    return normal;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& normal = saved[0];
    const at::Tensor& scale = saved[1];
    const at::Tensor gradient = gradients[0].contiguous();
    const auto dims = batch_dims(normal);
    at::Tensor sums = at::cat({gradient.sum(dims), (gradient * normal).sum(dims)});
    group_of(context).all_reduce(sums);
    sums /= context->saved_data["count"].toDouble();
    const int64_t features = scale.numel();
    const auto mean = along_features(sums.narrow(0, 0, features), normal);
    const auto slope = along_features(sums.narrow(0, features, features), normal);
    const at::Tensor result =
        (gradient - mean - normal * slope) * along_features(scale, normal);
    return {result, at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  struct Holder : torch::CustomClassHolder {
    ProcessGroup group;
  };
  // The context keeps the group alive as long as the graph lives.
  static ProcessGroup& group_of(AutogradContext* context) {
    auto& slot = context->saved_data["group"];
    if (slot.isNone()) slot = c10::IValue::make_capsule(c10::make_intrusive<Holder>());
    return static_cast<Holder*>(slot.toCapsule().get())->group;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const nn::BatchNormOptions& options,
                                     const ProcessGroup& group)
    : SyncBatchNormImpl(options, OwnGroup{group.duplicate()}) {}

SyncBatchNormImpl::SyncBatchNormImpl(const nn::BatchNormOptions& options, OwnGroup group)
    : options(options), group_(std::move(group.group)) {
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::reset() {
  const int64_t features = options.num_features();
  const bool affine = options.affine(), tracks = options.track_running_stats();
  weight =
      register_parameter("weight", affine ? at::ones({features}) : at::Tensor(), affine);
  bias = register_parameter("bias", affine ? at::zeros({features}) : at::Tensor(), affine);
  running_mean =
      register_buffer("running_mean", tracks ? at::zeros({features}) : at::Tensor());
  running_var =
      register_buffer("running_var", tracks ? at::ones({features}) : at::Tensor());
  num_batches_tracked = register_buffer("num_batches_tracked",
                                        tracks ? at::zeros({}, at::kLong) : at::Tensor());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "brigade::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << group_.size() << ")";
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw ConfigError(c10::str("SyncBatchNorm: an input of sizes ", input.sizes(),
                               "; expected (batch, ", options.num_features(), ", …)"));
  }
  at::Tensor normal;
  if (is_training() || !options.track_running_stats()) {
    normal = normalize_by_batch(input);
  } else {
    const auto dtype = sum_dtype(input);
    const at::Tensor scale = (running_var.to(dtype) + options.eps()).rsqrt();
    normal = (input.to(dtype) - along_features(running_mean.to(dtype), input)) *
             along_features(scale, input);
  }
  if (options.affine()) {
    normal = normal * along_features(weight.to(normal.scalar_type()), input) +
             along_features(bias.to(normal.scalar_type()), input);
  }
  return normal.to(input.scalar_type());
}

at::Tensor SyncBatchNormImpl::normalize_by_batch(const at::Tensor& input) {
  const at::Tensor values = input.to(sum_dtype(input));
  const Moments joined = [&] {
    at::NoGradGuard no_graph;
    return join_moments(group_, moments_of(values.detach()));
  }();
  if (joined.count < 2) {
    throw ConfigError(
        "SyncBatchNorm: the ranks have one value a feature in all; training needs two or "
        "more");
  }
  if (is_training() && options.track_running_stats()) {
    at::NoGradGuard no_graph;
    num_batches_tracked += 1;
    const double weight_of_batch =
        options.momentum().value_or(1.0 / num_batches_tracked.item<double>());
    running_mean.lerp_(joined.mean.to(running_mean.scalar_type()), weight_of_batch);
    running_var.lerp_((joined.squares / (joined.count - 1)).to(running_var.scalar_type()),
                      weight_of_batch);
  }
  return Normalize::apply(values, joined, options.eps(), group_);
}

// ---- conversion -------------------------------------------------------------------------

namespace {

template <class Visit>
bool visit_batch_norm(nn::Module& module, const Visit& visit) {
  if (auto* norm = module.as<nn::BatchNorm1dImpl>()) return visit(*norm), true;
  if (auto* norm = module.as<nn::BatchNorm2dImpl>()) return visit(*norm), true;
  if (auto* norm = module.as<nn::BatchNorm3dImpl>()) return visit(*norm), true;
  return false;
}

bool is_batch_norm_layer(nn::Module& module) {
  return visit_batch_norm(module, [](auto&) {});
}

// Returns the same layer over all ranks; it shares parameters and buffers with the old one.
SyncBatchNorm synchronized(nn::Module& module, const ProcessGroup& own) {
  SyncBatchNorm made = nullptr;
  visit_batch_norm(module, [&](auto& norm) {
    made = SyncBatchNorm(std::make_shared<SyncBatchNormImpl>(
        norm.options, SyncBatchNormImpl::OwnGroup{own}));
    const auto share = [](at::Tensor& to, const at::Tensor& from) {
      if (from.defined()) to.set_data(from);
    };
    share(made->weight, norm.weight);
    share(made->bias, norm.bias);
    share(made->running_mean, norm.running_mean);
    share(made->running_var, norm.running_var);
    share(made->num_batches_tracked, norm.num_batches_tracked);
    for (auto* each : {&made->weight, &made->bias}) {
      const at::Tensor& old = each == &made->weight ? norm.weight : norm.bias;
      if (old.defined()) each->requires_grad_(old.requires_grad());
    }
    made->train(norm.is_training());
  });
  return made;
}

bool can_replace_in(nn::Module& parent) {
  return parent.as<nn::SequentialImpl>() || parent.as<nn::ModuleListImpl>();
}

void check_parents(nn::Module& model) {
  if (is_batch_norm_layer(model)) {
    throw ConfigError(
        "convert_sync_batchnorm: the model is itself a BatchNorm; make a SyncBatchNorm");
  }
  for (const auto& parent : model.named_modules("", /*include_self=*/true)) {
    if (can_replace_in(*parent.value())) continue;
    for (const auto& child : parent.value()->named_children()) {
      if (!is_batch_norm_layer(*child.value())) continue;
      throw ConfigError("convert_sync_batchnorm: '" +
                        (parent.key().empty() ? "" : parent.key() + ".") + child.key() +
                        "' is a member of a module of another class, so its type is fixed: "
                        "make it a brigade::SyncBatchNorm there");
    }
  }
}

// `replace` gets a child's index, its name and the child's replacement.
template <class Replace>
int replace_children(nn::Module& parent, const ProcessGroup& own, const Replace& replace) {
  int replaced = 0;
  std::ptrdiff_t place = 0;
  for (const auto& child : parent.named_children()) {
    if (is_batch_norm_layer(*child.value())) {
      replace(place, child.key(), synchronized(*child.value(), own));
      ++replaced;
    }
    ++place;
  }
  return replaced;
}

}  // namespace

int convert_sync_batchnorm(nn::Module& model, const ProcessGroup& group) {
  check_parents(model);
  const auto modules = model.modules(/*include_self=*/true);
  if (std::ranges::none_of(modules, [](auto& each) { return is_batch_norm_layer(*each); }))
    return 0;
  const ProcessGroup own = group.duplicate();
  int replaced = 0;
  for (const auto& module : modules) {
    if (auto* sequence = module->as<nn::SequentialImpl>()) {
      replaced += replace_children(
          *sequence, own,
          [&](auto place, const std::string& name, const SyncBatchNorm& made) {
            *(sequence->begin() + place) = nn::AnyModule(made);
            sequence->replace_module(name, made);
          });
    } else if (auto* list = module->as<nn::ModuleListImpl>()) {
      replaced += replace_children(
          *list, own, [&](auto place, const std::string& name, const SyncBatchNorm& made) {
            *(list->begin() + place) = made.ptr();
            list->replace_module(name, made);
          });
    }
  }
  return replaced;
}

}  // namespace brigade
