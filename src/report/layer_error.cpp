#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "base/number_text.h"
#include "brigade/report.h"

namespace brigade::report {
namespace {

double norm_of(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor).item<double>();
}

std::string percent_text(double error) { return base::readable(100 * error); }

}  // namespace

LayerError::LayerError(ProcessGroup group, const DdpCore& ddp)
    : group_(std::move(group)), ddp_(ddp) {}

LayerError::~LayerError() { forget(); }

void LayerError::begin() {
  forget();
  const auto& parameters = ddp_.parameters();
  local_.assign(parameters.size(), {});
  for (size_t i = 0; i < parameters.size(); ++i) {
    // Called before the gradient goes into its bucket.
    hooks_.push_back(parameters[i].register_hook(
        [this, i](const at::Tensor& gradient) { local_[i] = gradient.detach().clone(); }));
  }
}

void LayerError::forget() {
  for (size_t i = 0; i < hooks_.size(); ++i) ddp_.parameters()[i].remove_hook(hooks_[i]);
  hooks_.clear();
  local_.clear();
}

void LayerError::finish(std::int64_t step) {
  if (hooks_.empty()) return;
  const c10::NoGradGuard no_grad;
  Sample sample{.step = step};
  const auto& parameters = ddp_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    double error = std::numeric_limits<double>::quiet_NaN(), norm = error;
    if (!ddp_.sparse_gradients()[i]) {
      at::Tensor mean = local_[i].defined() ? local_[i].to(at::kDouble)
                                            : at::zeros_like(parameters[i], at::kDouble);
      if (group_.size() > 1) group_.all_reduce(mean);
      mean.div_(group_.size());
      const at::Tensor given = parameters[i].grad();
      norm = norm_of(mean);
      const double off = norm_of(given.defined() ? given.to(at::kDouble) - mean : mean);
      error = off == 0 ? 0 : off / norm;
    }
    sample.errors.push_back(error);
    sample.norms.push_back(norm);
  }
  samples_.push_back(std::move(sample));
  forget();
}

Table LayerError::table() const {
  Table table{.title = "Error of the hook, by parameter",
              .note =
                  "What the hook gave against the exact mean of the gradients, in a few "
                  "steps: the norm of the difference over the norm of the mean, in %.",
              .columns = {}};
  if (samples_.empty()) return table;
  table.columns = {"parameter", "values", "norm of the mean"};
  for (const Sample& sample : samples_)
    table.columns.push_back("% at step " + std::to_string(sample.step));
  for (size_t i = 0; i < ddp_.parameters().size(); ++i) {
    std::vector<std::string> row{
        ddp_.parameter_names()[i],
        base::readable(static_cast<double>(ddp_.parameters()[i].numel())),
        base::readable(samples_.back().norms[i])};
    for (const Sample& sample : samples_) row.push_back(percent_text(sample.errors[i]));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace brigade::report
