#include "brigade/optim/clip_grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>
#include <mutex>

#include "brigade/error.h"
#include "optim/norm.h"

namespace brigade::optim {
namespace {

// A value of a gradient, to find out whether it has been changed since.
struct Sample {
  at::Tensor parameter;
  int64_t place = 0;  // in the memory of the gradient
  float value = 0;
};

// The first value that is not 0, among the first few.
std::optional<Sample> sample_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  const float* values = gradient.const_data_ptr<float>();
  const int64_t count = std::min<int64_t>(gradient.numel(), 256);
  for (int64_t i = 0; i < count; ++i)
    if (values[i] != 0) return Sample{parameter, i, values[i]};
  return std::nullopt;
}

bool is_as_it_was(const Sample& sample) {
  const at::Tensor& gradient = sample.parameter.grad();
  return gradient.defined() && gradient.is_cpu() && gradient.scalar_type() == at::kFloat &&
         !gradient.is_sparse() && gradient.is_non_overlapping_and_dense() &&
         gradient.const_data_ptr<float>()[sample.place] == sample.value;
}

class NormHook : public MeasuringWrapper {
 public:
  using MeasuringWrapper::MeasuringWrapper;

  std::string name() const override { return inner().name(); }
  // It divides another time than a plain mean would.
  std::string fingerprint() const override {
    return inner().fingerprint() + ", its norm measured";
  }

  void begin_pass(const HookPass& pass) override {
    HookWrapper::begin_pass(pass);
    std::lock_guard lock(mutex_);
    measures_ = pass.complete && !pass.may_be_unused;
    squares_.clear();
    buckets_ = 0;
    samples_.clear();
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    const Measured measured = co_await reduce_inner_measured(bucket, comm);
    note(bucket, measured);
    co_return measured.result;
  }

  // The sum of squares that backward() left, if it is still that of the gradients.
  std::optional<double> measured() {
    std::lock_guard lock(mutex_);
    const bool whole =
        measures_ && buckets_ > 0 && std::ssize(squares_) == buckets_ && !samples_.empty();
    if (!whole || !std::ranges::all_of(samples_, is_as_it_was)) return std::nullopt;
    double sum = 0;
    for (const auto& [index, squares] : squares_) sum += squares;
    return sum;
  }
  // They have been changed.
  void forget() {
    std::lock_guard lock(mutex_);
    measures_ = false;
  }

 private:
  void note(const Bucket& bucket, const Measured& measured) {
    const at::Tensor& result = measured.result;
    const bool fits = result.is_cpu() && !result.is_sparse() &&
                      result.scalar_type() == at::kFloat && result.is_contiguous();
    double squares = 0;
    std::vector<Sample> samples;
    if (fits) {
      squares = measured.squares ? *measured.squares : squares_in(result);
      samples = samples_of(bucket, result);
    }
    std::lock_guard lock(mutex_);
    measures_ = measures_ && fits;
    squares_[bucket.index()] = squares;
    if (bucket.is_last()) buckets_ = bucket.index() + 1;
    samples_.insert(samples_.end(), samples.begin(), samples.end());
  }

  static std::vector<Sample> samples_of(const Bucket& bucket, const at::Tensor& result) {
    std::vector<Sample> samples;
    const std::vector<at::Tensor> places = bucket.gradients();
    const std::vector<at::Tensor> parameters = bucket.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t offset = places[i].storage_offset() - bucket.buffer().storage_offset();
      auto sample = sample_of(parameters[i], result.narrow(0, offset, places[i].numel()));
      if (sample) samples.push_back(std::move(*sample));
    }
    return samples;
  }

  std::mutex mutex_;  // buckets may end at different stations
  bool measures_ = false;
  // By bucket: added up in their order, whatever order they end in, so that all ranks find
  // the same bits.
  std::map<int64_t, double> squares_;
  int64_t buckets_ = 0;  // known when the last one has come
  std::vector<Sample> samples_;
};

std::vector<at::Tensor> gradients_of(const DdpCore& core) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : core.parameters())
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace

std::shared_ptr<Hook> measure_norm(std::shared_ptr<Hook> hook) {
  return std::make_shared<NormHook>(std::move(hook));
}

double clip_grad_norm(DdpCore& core, double max_norm) {
  if (!(max_norm > 0)) {
    throw ConfigError("clip_grad_norm: max_norm is " + std::to_string(max_norm) +
                      ", but must be more than 0");
  }
  at::NoGradGuard no_grad;
  auto* hook = dynamic_cast<NormHook*>(core.hook().get());
  std::optional<double> squares = hook ? hook->measured() : std::nullopt;
  const std::vector<at::Tensor> gradients = gradients_of(core);
  if (!squares) {
    squares = 0;
    for (const at::Tensor& gradient : gradients)
      *squares += squares_in(gradient.is_sparse() ? gradient.coalesce() : gradient);
  }
  const double factor = clipping_factor(*squares, max_norm);
  if (factor < 1) {
    for (at::Tensor gradient : gradients) gradient.mul_(factor);
    if (hook) hook->forget();
  }
  return std::sqrt(*squares);
}

}  // namespace brigade::optim
