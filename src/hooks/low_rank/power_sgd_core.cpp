#include "hooks/low_rank/power_sgd_core.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Logging.h>

#include "codec/low_rank.h"

namespace brigade {
namespace {

void check_options(const std::string& name, const PowerSGDOptions& options) {
  const auto demand = [&](bool holds, const char* field, auto value, const char* rule) {
    if (!holds)
      throw ConfigError(c10::str(name, ": ", field, " is ", value, ", expected ", rule));
  };
  demand(options.matrix_approximation_rank >= 1, "rank", options.matrix_approximation_rank,
         "1 or more");
  demand(options.start_powerSGD_iter >= 0, "start", options.start_powerSGD_iter,
         "0 or more");
  demand(options.min_compression_rate > 0, "min_rate", options.min_compression_rate,
         "more than 0");
  demand(options.orthogonalization_epsilon >= 0, "eps", options.orthogonalization_epsilon,
         "0 or more");
  const bool may_be_one = name == "powersgd";
  demand(options.rounds == 2 || (may_be_one && options.rounds == 1), "rounds",
         options.rounds, may_be_one ? "1 or 2" : "2");
}

// Computes in double, because the square of 1e30 is no float.
at::Tensor norms(const at::Tensor& columns) {
  return at::linalg_vector_norm(columns, 2, at::IntArrayRef{1}, true, at::kDouble);
}

void gram_schmidt(at::Tensor batch, double epsilon) {
  const int64_t columns = batch.size(2);
  // If a column depends on those before it, only rounding is left of it, which has no
  // meaningful direction. Less than this fraction of its length counts as zero.
  const double nothing = batch.scalar_type() == at::kDouble ? 16 * 0x1p-52 : 16 * 0x1p-23;
  const at::Tensor least = norms(batch).mul_(nothing);
  for (int64_t index = 0; index < columns; ++index) {
    at::Tensor column = batch.narrow(2, index, 1);
    at::Tensor norm = norms(column);
    at::Tensor factor = at::where(norm > least.narrow(2, index, 1),
                                  (norm + epsilon).reciprocal(), at::zeros_like(norm));
    column.copy_(column.to(at::kDouble).mul_(factor));
    if (index + 1 == columns) break;
    at::Tensor rest = batch.narrow(2, index + 1, columns - index - 1);
    // Runs twice: if columns are nearly parallel, the first pass leaves mostly rounding.
    for (int pass = 0; pass < 2; ++pass)
      rest.sub_(at::matmul(column, at::matmul(column.transpose(1, 2), rest)));
  }
}

}  // namespace

void orthogonalize(at::Tensor batch, double epsilon) {
  std::vector<low_rank::Columns> matrices;
  for (const at::Tensor& columns : batch.unbind()) matrices.push_back({columns});
  if (low_rank::orthonormalize(matrices, epsilon)) return;
  if (batch.size(2) <= 2) return gram_schmidt(std::move(batch), epsilon);
  // Some libraries refuse the QR of a matrix with NaN or Inf; here the result must be NaN.
  const at::Tensor finite = at::isfinite(batch).all();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (!batch.is_cpu()) {  // the host must not wait for the device
    const at::Tensor found = at::where(finite, batch, at::zeros_like(batch));
    batch.copy_(
        at::where(finite, std::get<0>(at::linalg_qr(found)), at::full_like(batch, nan)));
  } else if (finite.item<bool>()) {
    batch.copy_(std::get<0>(at::linalg_qr(batch)));
  } else {
    batch.fill_(nan);
  }
}

void orthogonalize(const std::vector<low_rank::Columns>& matrices, double epsilon) {
  if (low_rank::orthonormalize(matrices, epsilon)) return;
  for (const low_rank::Columns& each : matrices) {
    if (each.from.defined()) each.columns.copy_(revive(each.from, each.spare));
    orthogonalize(each.columns.unsqueeze(0), epsilon);
  }
}

at::Tensor revive(const at::Tensor& q, const at::Tensor& spare) {
  return at::where(at::any(q != 0, -2, true), q, spare);
}

at::Tensor keep(const at::Tensor& finite, const at::Tensor& fresh, const at::Tensor& old) {
  if (finite.is_cpu()) return finite.item<bool>() ? fresh : old;
  return at::where(finite, fresh, old.defined() ? old : at::zeros_like(fresh));
}

at::Tensor random_start(at::IntArrayRef shape, const at::TensorOptions& options,
                        uint64_t seed, uint64_t draw) {
  // Neighbouring draws get seeds that are far apart. Values are drawn on the CPU, so that
  // they are the same on every device.
  at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(seed * 0x9E3779B97F4A7C15ull + draw);
  const auto there = at::TensorOptions(options.dtype());
  at::Tensor values = at::empty(shape, there.pinned_memory(options.device().is_cuda()));
  // On a device, the host does not wait for the copy.
  return values.normal_(0, 1, generator).to(options.device(), /*non_blocking=*/true);
}

at::ScalarType compute_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

PowerSGDBase::PowerSGDBase(std::string name, PowerSGDOptions options)
    : name_(std::move(name)), options_(std::move(options)) {
  check_options(name_, options_);
}

std::string PowerSGDBase::fingerprint() const {
  return c10::str(
      name_, ":rank=", options_.matrix_approximation_rank,
      ",start=", options_.start_powerSGD_iter, ",min_rate=", options_.min_compression_rate,
      ",ef=", options_.use_error_feedback, ",warm=", options_.warm_start,
      ",eps=", options_.orthogonalization_epsilon, ",seed=", options_.random_seed,
      ",batch=", options_.batch_tensors_with_same_shape,
      options_.rounds == 2 ? "" : ",rounds=1");
}

CompressionStats PowerSGDBase::compression_stats() const {
  std::lock_guard lock(stats_mutex_);
  return {progress_.after > 0
              ? static_cast<double>(progress_.before) / static_cast<double>(progress_.after)
              : 0,
          progress_.before, progress_.after};
}

bool PowerSGDBase::compresses(const Bucket& bucket) {
  const bool started = progress_.iteration >= options_.start_powerSGD_iter;
  if (bucket.is_last()) ++progress_.iteration;
  return started;
}

void PowerSGDBase::count(const Bucket& bucket, int64_t before, int64_t after) {
  {
    std::lock_guard lock(stats_mutex_);
    progress_.before += before;
    progress_.after += after;
  }
  if (!bucket.is_last() || progress_.iteration < progress_.next_report) return;
  const CompressionStats stats = compression_stats();
  if (options_.report) {
    options_.report(progress_.iteration, stats);
  } else {
    LOG(INFO) << name_ << ": iteration " << progress_.iteration << ", "
              << stats.elements_before << " elements before compression, "
              << stats.elements_after << " after, rate " << stats.rate;
  }
  progress_.next_report =
      progress_.iteration +
      std::max<int64_t>(1, options_.compression_stats_logging_frequency);
}

at::Tensor PowerSGDBase::next_start(at::IntArrayRef shape,
                                    const at::TensorOptions& options) {
  return random_start(shape, options, options_.random_seed, progress_.draws++);
}

void PowerSGDBase::save_base(HookState& state) const {
  state.values["options"] = fingerprint();
  state.values["iteration"] = std::to_string(progress_.iteration);
  state.values["draws"] = std::to_string(progress_.draws);
  state.values["next_report"] = std::to_string(progress_.next_report);
  const CompressionStats stats = compression_stats();
  state.values["elements_before"] = std::to_string(stats.elements_before);
  state.values["elements_after"] = std::to_string(stats.elements_after);
}

void PowerSGDBase::reset_base() {
  std::lock_guard lock(stats_mutex_);
  progress_ = {};
}

void PowerSGDBase::commit_base() { committed_ = progress_; }

void PowerSGDBase::take_back_base() {
  std::lock_guard lock(stats_mutex_);
  progress_ = committed_;
}

void PowerSGDBase::load_base(const HookState& state) {
  const auto value = [&](const char* key) {
    auto found = state.values.find(key);
    if (found == state.values.end()) {
      throw ConfigError(name_ + ": the state has no '" + key + "'; is it another hook's?");
    }
    return found->second;
  };
  if (value("options") != fingerprint()) {
    throw MismatchError("the state was saved with '" + value("options") +
                        "', this hook is '" + fingerprint() + "'");
  }
  progress_.iteration = std::stoll(value("iteration"));
  progress_.draws = std::stoull(value("draws"));
  progress_.next_report = std::stoll(value("next_report"));
  std::lock_guard lock(stats_mutex_);
  progress_.before = std::stoll(value("elements_before"));
  progress_.after = std::stoll(value("elements_after"));
}

}  // namespace brigade
