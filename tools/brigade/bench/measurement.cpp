#include "bench/measurement.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "common/fingerprint.h"
#include "common/hook_choice.h"

namespace brigade::tool {
namespace {

// Gradients repeat a pattern of this length, so every rank knows every other's without
// asking. It is a prime, so that neither rows nor blocks repeat.
constexpr int64_t kPeriod = 1'000'003;
constexpr int64_t kSide = 1024;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

at::Tensor pattern(int seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randn({kPeriod}, generator, at::TensorOptions().dtype(at::kFloat));
}

// `count` values of the endless repetition of `pattern`, from `offset` on.
at::Tensor tile(const at::Tensor& pattern, int64_t offset, int64_t count) {
  at::Tensor values = at::empty({count}, pattern.options());
  int64_t from = offset % kPeriod;
  for (int64_t at = 0; at < count;) {
    const int64_t run = std::min(count - at, kPeriod - from);
    values.narrow(0, at, run).copy_(pattern.narrow(0, from, run));
    at += run;
    from = 0;
  }
  return values;
}

// forward() returns the parameters themselves, so the gradients that backward() starts with
// become theirs.
struct GivenGradientsImpl : torch::nn::Module {
  GivenGradientsImpl(const Shapes& shapes, at::Device device) {
    for (size_t index = 0; index < shapes.size(); ++index) {
      all.push_back(register_parameter("p" + std::to_string(index),
                                       at::zeros(shapes[index], device)));
    }
  }
  std::vector<at::Tensor> forward() {
    std::vector<at::Tensor> results;
    for (const at::Tensor& parameter : all) results.push_back(parameter.view_as(parameter));
    return results;
  }
  std::vector<at::Tensor> all;
};

bool is_low_rank(const std::string& spec) {
  // With one round a step is exact only once the factors stay.
  return base_name(spec).starts_with("powersgd") &&
         spec.find("rounds=1") == std::string::npos;
}

std::shared_ptr<Hook> hook_of(const std::string& spec) {
  return spec == kNoHook ? nullptr : make_hook(spec);
}

// `auto` needs this many steps to settle: windows of 8 steps (the first may have begun
// before), one exact, one for each of four candidates, and two to compare.
constexpr int kStepsToSettle = 64;

double square_sum(const at::Tensor& values) {
  return values.to(at::kDouble).square().sum().item<double>();
}

}  // namespace

struct Measurement::State {
  State(ProcessGroup group, Shapes shapes, at::Device device)
      : group(std::move(group)),
        shapes(std::move(shapes)),
        device(device),
        model(std::make_shared<GivenGradientsImpl>(this->shapes, device)),
        ddp(model, this->group, {.gradient_as_bucket_view = true}) {
    given = gradients_of(pattern(this->group.rank() + 1));
    // DDP makes its buckets anew after the first step.
    for (int pass = 0; pass < 2; ++pass) step(given);
  }

  std::vector<at::Tensor> gradients_of(const at::Tensor& repeated) const {
    std::vector<at::Tensor> list;
    int64_t offset = 0;
    for (const auto& shape : shapes) {
      const int64_t count = c10::multiply_integers(shape);
      list.push_back(tile(repeated, offset, count).view(shape).to(device));
      offset += count;
    }
    return list;
  }
  // Matrices u vᵀ in which only u differs between ranks, so their mean has rank one too.
  std::vector<at::Tensor> low_rank_of(const at::Tensor& repeated) const {
    const at::Tensor common = pattern(0);
    std::vector<at::Tensor> list;
    for (const auto& shape : shapes) {
      if (shape.size() == 2) {
        const at::Tensor u = tile(repeated, shape[0], shape[0]).unsqueeze(1);
        list.push_back((u * tile(common, 0, shape[1])).to(device));
      } else {
        list.push_back(tile(repeated, 0, shape[0]).to(device));
      }
    }
    return list;
  }

  void step(const std::vector<at::Tensor>& gradients) {
    const auto results = prepare();
    torch::autograd::backward(results, gradients);
  }
  std::vector<at::Tensor> prepare() {
    // Zeros stay, so gradients are added into the buckets, and nothing is allocated.
    ddp->zero_grad(false);
    return ddp->forward();
  }

  // The error of one step, as a share of a rank's gradients; the parameters keep the
  // result.
  double error_of(const std::function<std::vector<at::Tensor>(const at::Tensor&)>& make) {
    at::Tensor mean = at::zeros({kPeriod}, at::kDouble);
    for (int rank = 0; rank < group.size(); ++rank) mean += pattern(rank + 1);
    mean /= group.size();
    const auto exact = make(mean);
    double off = 0, size = 0;
    for (size_t index = 0; index < exact.size(); ++index) {
      const at::Tensor& found = model->all[index].grad();
      off += square_sum(found.to(at::kDouble) - exact[index]);
    }
    // The first rank's gradients are as large as the others'.
    for (const at::Tensor& one : make(pattern(1))) size += square_sum(one);
    return size > 0 ? std::sqrt(off / size) : 0;
  }

  bool replicas_identical() const {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : model->all) gradients.push_back(parameter.grad());
    const auto all = group.gather_texts("the reduced gradients", fingerprint(gradients));
    return std::ranges::all_of(all, [&](const std::string& one) { return one == all[0]; });
  }

  // Ranks must agree: each rank's own clock would give it a different number of steps.
  int agree_on_steps(double one_step, double seconds, int least, int most) const {
    const double fit = std::clamp(seconds / std::max(one_step, 1e-9), double(least), 1e9);
    at::Tensor count = at::full({1}, std::min(fit, double(most)), at::kDouble).to(device);
    group.broadcast(count, 0);
    return static_cast<int>(count.item<double>());
  }

  ProcessGroup group;
  Shapes shapes;
  at::Device device;
  std::shared_ptr<GivenGradientsImpl> model;
  DistributedDataParallel<GivenGradientsImpl> ddp;
  std::vector<at::Tensor> given;
};

Measurement::Measurement(ProcessGroup group, Shapes shapes, at::Device device)
    : state_(std::make_unique<State>(std::move(group), std::move(shapes), device)) {}
Measurement::~Measurement() = default;

ReductionTimes Measurement::time(const std::string& spec, double seconds, int least,
                                 int most) {
  State& state = *state_;
  state.ddp->set_hook(hook_of(spec));
  ReductionTimes times;
  const auto timed_step = [&] {
    const auto results = state.prepare();
    if (state.device.is_cuda()) torch::cuda::synchronize();
    const double begin = seconds_of(CLOCK_MONOTONIC);
    const double cpu_begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    torch::autograd::backward(results, state.given);
    if (state.device.is_cuda()) torch::cuda::synchronize();
    const double end = seconds_of(CLOCK_MONOTONIC);
    const double cpu_end = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    times.seconds.push_back(end - begin);
    times.cpu_seconds.push_back(cpu_end - cpu_begin);
  };
  const int warm_up = base_name(spec) == "auto" ? kStepsToSettle : 2;
  for (int warm = 0; warm < warm_up; ++warm) timed_step();
  const int steps = state.agree_on_steps(times.seconds.back(), seconds, least, most);
  times.seconds.clear();
  times.cpu_seconds.clear();
  for (int step = 0; step < steps; ++step) timed_step();
  const HookStats stats = state.ddp->hook_stats();
  times.traffic = stats.last_step;
  times.shape = stats.shape;
  times.buckets = static_cast<int64_t>(state.ddp->logging_data().bucket_bytes.size());
  return times;
}

ReductionCheck Measurement::check(const std::string& spec) {
  State& state = *state_;
  torch::NoGradGuard no_grad;
  const auto run = [&](const std::vector<at::Tensor>& gradients, int passes) {
    at::AutoGradMode with_grad(true);
    state.ddp->set_hook(hook_of(spec));
    for (int pass = 0; pass < passes; ++pass) state.step(gradients);
  };
  const int rank = state.group.rank();
  ReductionCheck check;
  run(state.given, 1);
  check.identical = state.replicas_identical();
  check.error = state.error_of([&](const at::Tensor& p) { return state.gradients_of(p); });
  if (is_low_rank(spec)) {
    // The first pass finds the direction; later ones add what was left over.
    run(state.low_rank_of(pattern(rank + 1)), 3);
    check.identical &= state.replicas_identical();
    check.low_rank_error =
        state.error_of([&](const at::Tensor& p) { return state.low_rank_of(p); });
  }
  return check;
}

Shapes shapes_of_size(int64_t bytes) {
  int64_t left = bytes / 4;
  Shapes shapes;
  for (; left >= kSide * kSide; left -= kSide * kSide) shapes.push_back({kSide, kSide});
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(left)));
  if (side > 1) shapes.push_back({side, side}), left -= side * side;
  if (left > 0) shapes.push_back({left});
  return shapes;
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double share = place - static_cast<double>(below);
  return values[below] * (1 - share) + values[above] * share;
}

}  // namespace brigade::tool
