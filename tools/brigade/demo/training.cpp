#include "demo/training.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <numeric>
#include <optional>

#include "brigade/data.h"
#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "brigade/report.h"
#include "common/fingerprint.h"
#include "common/hook_choice.h"
#include "train/batches.h"

namespace brigade::tool {
namespace {

using Clock = std::chrono::steady_clock;

// Accuracy is measured every so many steps, and spans of the last so many steps are kept.
constexpr int kMeasureEvery = 8;

// Two convolutions, a pool, three dense layers.
struct DigitNetImpl : torch::nn::Module {
  DigitNetImpl() {
    auto conv = [](int from, int to) {
      return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1));
    };
    conv1 = register_module("conv1", conv(1, 32));
    conv2 = register_module("conv2", conv(32, 64));
    wide = register_module("wide", torch::nn::Linear(64 * 4 * 4, 224));
    narrow = register_module("narrow", torch::nn::Linear(224, 128));
    output = register_module("output", torch::nn::Linear(128, 10));
  }
  at::Tensor forward(const at::Tensor& pixels) {
    at::Tensor x = torch::relu(conv1(pixels.view({-1, 1, 8, 8})));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return output(torch::relu(narrow(torch::relu(wide(x.flatten(1))))));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear wide{nullptr}, narrow{nullptr}, output{nullptr};
};
TORCH_MODULE(DigitNet);

double accuracy(DigitNet& net, const Batch& examples) {
  torch::NoGradGuard no_grad;
  at::Tensor right = net->forward(examples.input).argmax(1).eq(examples.target);
  return right.to(at::kDouble).mean().item<double>();
}

Batch all_for_test(const BatchMaker& batches) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(batches.test_size()));
  std::iota(all.begin(), all.end(), 0);
  return batches.test(all);
}

}  // namespace

std::int64_t demo_parameters() {
  std::int64_t count = 0;
  const DigitNet net;
  for (const at::Tensor& parameter : net->parameters()) count += parameter.numel();
  return count;
}

std::string demo_network() {
  return "convolutions 1-32-64 (3x3), pool, dense 1024-224-128-10; AdamW";
}

class DigitTraining::Trainer {
 public:
  Trainer(const Worker& worker, const TrainData& data, const std::string& spec,
          const DemoTraining& training)
      : group_(worker.group),
        device_(worker.device),
        batches_(data, /*context=*/0, worker.device),
        test_(all_for_test(batches_)),
        sampler_(static_cast<std::size_t>(batches_.train_size()), group_,
                 {.seed = training.seed}),
        batch_(static_cast<std::size_t>(training.batch)),
        learning_rate_(training.learning_rate) {
    torch::manual_seed(training.seed);
    net_ = DigitNet();
    net_->to(device_);
    // Buckets are small, so that several are under way at once even in a small network.
    ddp_ = DistributedDataParallel<DigitNetImpl>(
        net_, group_, {.bucket_cap_mb = 0.1, .gradient_as_bucket_view = true});
    ddp_->set_hook(make_hook(spec));
    optimizer_ = std::make_unique<torch::optim::AdamW>(
        ddp_->parameters(), torch::optim::AdamWOptions(training.learning_rate));
    timeline_.emplace(group_, ddp_->core());
    group_.barrier();
  }

  // `left` of `steps` remain, this one included.
  StepPoint step(int left, int steps) {
    timeline_->begin_step(left);
    const Batch batch = next_batch(batches_, sampler_, batch_);
    const auto begin = Clock::now();
    at::Tensor loss =
        torch::nn::functional::cross_entropy(ddp_->forward(batch.input), batch.target);
    const auto forward = Clock::now();
    ddp_->zero_grad();
    loss.backward();
    const auto backward = Clock::now();
    static_cast<torch::optim::AdamWOptions&>(optimizer_->param_groups()[0].options())
        .lr(learning_rate_ * left / steps);
    optimizer_->step();
    const double loss_now = loss.item<double>();  // a device has finished the step by then
    const auto end = Clock::now();
    for (const auto& [kind, from, to] :
         {std::tuple{Span::Kind::forward, begin, forward},
          std::tuple{Span::Kind::backward, forward, backward},
          std::tuple{Span::Kind::optimizer, backward, end}}) {
      timeline_->note(kind, from, to);
    }
    const HookStats stats = ddp_->hook_stats();
    seconds_ += std::chrono::duration<double>(end - begin).count();
    return {.step = ++steps_,
            .seconds = seconds_,
            .step_ms = std::chrono::duration<double, std::milli>(end - begin).count(),
            .loss = loss_now,
            .accuracy = std::nullopt,
            .bytes_sent = stats.total.bytes_sent,
            .overlap = stats.last_step.overlap()};
  }

  void finish(Series& series) {
    const HookStats stats = ddp_->hook_stats();
    series.overlap = stats.total.overlap();
    series.gradient_bytes = static_cast<double>(ddp_->logging_data().parameter_bytes);
    series.fingerprints =
        group_.gather_texts("the replicas", fingerprint(net_->parameters()));
    series.spans = timeline_->gather();
    summarise(series);
  }

  double test_accuracy() { return accuracy(net_, test_); }

 private:
  const ProcessGroup& group_;
  const c10::Device device_;
  BatchMaker batches_;
  Batch test_;
  DistributedSampler sampler_;
  std::size_t batch_;
  double learning_rate_;
  DigitNet net_{nullptr};
  DistributedDataParallel<DigitNetImpl> ddp_{nullptr};
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::optional<report::Timeline> timeline_;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
};

DigitTraining::DigitTraining(const Worker& worker, const TrainData& data,
                             const std::string& spec, const DemoTraining& training)
    : group_(worker.group),
      steps_(training.steps),
      trainer_(std::make_unique<Trainer>(worker, data, spec, training)) {
  series_.hook = spec;
  series_.takes_mean = tolerance_of(spec) >= 0;
}

DigitTraining::~DigitTraining() = default;

bool DigitTraining::advance(const std::function<void()>& watch) {
  const int before = static_cast<int>(series_.points.size());
  const int until = std::min(before + kMeasureEvery, steps_);
  for (int step = before; step < until; ++step) {
    StepPoint point = trainer_->step(steps_ - step, steps_);
    if (group_.rank() == 0 && (step == 0 || step + 1 == until))
      point.accuracy = series_.test_accuracy = trainer_->test_accuracy();
    series_.points.push_back(point);
    if (group_.rank() == 0) watch();
  }
  return until > before;
}

Series DigitTraining::finish() {
  trainer_->finish(series_);
  return std::move(series_);
}

}  // namespace brigade::tool
