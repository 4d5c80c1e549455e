#include "train/elastic.h"

#include <signal.h>
#include <torch/nn/functional/loss.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "brigade/elastic.h"
#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "brigade/report.h"
#include "common/fingerprint.h"
#include "common/json.h"
#include "group/store/mailbox.h"
#include "report/history.h"
#include "train/batches.h"
#include "train/lr_schedule.h"
#include "train/model.h"
#include "train/precision.h"

namespace brigade::tool {
namespace {

// With --kill-at, this many steps are trained after all members are back.
constexpr std::int64_t kStepsAfter = 300;
constexpr std::int64_t kStepsAtMost = 1'000'000;

struct Kill {
  std::int64_t step = -1;
  int worker = -1;

  explicit Kill(const std::string& text) {
    if (text.empty()) return;
    step = std::stoll(text);
    worker = std::stoi(text.substr(text.find(':') + 1));
  }
  bool planned() const { return step >= 0; }
  bool is_now(std::int64_t at) const {
    const char* mine = std::getenv(group::kWorkerNumber);
    return at == step && mine && std::to_string(worker) == mine;
  }
};

class ElasticRun {
 public:
  ElasticRun(const TrainOptions& options, const TrainData& data)
      : options_(options),
        kill_(options.kill_at),
        batches_(data, options.model.context, c10::kCPU),
        job_(join_job({.backend = "gloo"})),
        model_(seeded_model(data)),
        ddp_(model_, job_.group(),
             DdpOptions{.mixed_precision = precision_of(options),
                        .bucket_cap_mb = options.bucket_mb,
                        .gradient_as_bucket_view = true}),
        optimizer_(optim::make_optimizer(options.optimizer)),
        schedule_(options.schedule, options.steps),
        sampler_(batches_.train_size(), options.batch,
                 {.seed = options.seed, .epochs = std::numeric_limits<int64_t>::max()}),
        training_(job_, ddp_, *optimizer_, sampler_) {
    ddp_->set_hook(make_hook(options.hook));
    const double own = std::stod(optimizer_->state({}).values.at("options.lr"));
    training_.on_step([this, lr = options.lr.value_or(own)] {
      optimizer_->set_lr(lr * schedule_.factor(training_.steps()));
      for (const at::Tensor& parameter : ddp_->core().parameters())
        optimizer_->step_param(parameter, parameter.grad());
    });
    training_.end_after(kill_.planned() ? kStepsAtMost : options.steps);
    training_.on_generation([this](const ElasticEvent& event) { changed(event); });
  }

  void run() {
    while (auto rows = training_.next()) {
      if (kill_.is_now(training_.steps())) raise(SIGKILL);
      train_step(*rows);
    }
    finish();
  }

 private:
  std::shared_ptr<Model> seeded_model(const TrainData& data) const {
    torch::manual_seed(options_.seed);
    return make_model(options_.model, data);
  }
  bool speaks() const { return training_.group().rank() == 0; }

  void changed(const ElasticEvent& event) {
    // By now all members know this, and no other condition decides when to end.
    if (kill_.planned() && event.generation > 0 &&
        event.members == options_.workers.workers)
      training_.end_after(event.step + kStepsAfter);
    if (event.generation > 0)
      series_.generations.push_back(
          {event.step, event.members, event.why.substr(0, event.why.find('\n'))});
    if (!speaks()) return;
    if (event.generation == 0) {
      std::printf("%d workers train, hook %s\n", event.members, options_.hook.c_str());
    } else {
      std::printf("step %lld: %s; %d workers go on, %lld ms were lost\n",
                  static_cast<long long>(event.step),
                  event.why.substr(0, event.why.find('\n')).c_str(), event.members,
                  static_cast<long long>(event.lost.count()));
    }
    std::fflush(stdout);
  }

  void train_step(const at::Tensor& rows) {
    const Batch batch = batches_.train(std::span(rows.const_data_ptr<std::int64_t>(),
                                                 static_cast<std::size_t>(rows.numel())));
    double loss = 0;
    const auto begin = std::chrono::steady_clock::now();
    const bool done = training_.step([&] {
      const at::Tensor value = torch::nn::functional::cross_entropy(
          ddp_->forward(batch.input).to(at::kFloat), batch.target);
      value.backward();
      loss = value.item<double>();
    });
    const auto step = training_.steps();
    if (done) note(loss, std::chrono::steady_clock::now() - begin);
    if (done && !std::isfinite(loss)) {
      throw Error("step " + std::to_string(step) + ": the loss is " + std::to_string(loss) +
                  "; a smaller --lr may help");
    }
    if (!done || !speaks() || options_.evaluate_every == 0 ||
        step % options_.evaluate_every != 0)
      return;
    std::printf("step %lld: loss %.4f\n", static_cast<long long>(step), loss);
    std::fflush(stdout);
  }

  // Runs on every rank, because the rank 0 of the end writes the report. That is the oldest
  // worker, which has seen the most.
  void note(double loss, std::chrono::duration<double> took) {
    if (options_.out.empty()) return;
    const HookStats stats = ddp_->hook_stats();
    seconds_ += took.count();
    bytes_sent_ += stats.last_step.bytes_sent;
    history_.add({.step = training_.steps(),
                  .seconds = seconds_,
                  .step_ms = 1e3 * took.count(),
                  .loss = loss,
                  .accuracy = std::nullopt,
                  .bytes_sent = bytes_sent_,
                  .overlap = stats.last_step.overlap()});
  }

  void write_report_with(double accuracy, const std::string& replica) {
    if (options_.out.empty() || !speaks() || history_.empty()) return;
    series_.hook = options_.hook;
    series_.points = history_.points();
    series_.test_accuracy = accuracy;
    series_.fingerprints = {replica};
    summarise(series_);
    RunRecord record{.title = "brigade train --elastic", .command = options_.command};
    record.setup = machine_setup();
    record.setup.emplace_back("data", options_.data);
    record.setup.emplace_back("workers", std::to_string(options_.workers.workers));
    record.series.push_back(series_);
    write_report(record, options_.out + "/report.html");
  }

  // This is not collective, because members may already have ended.
  double accuracy() {
    torch::NoGradGuard no_grad;
    model_->eval();
    std::vector<std::int64_t> all(static_cast<std::size_t>(batches_.test_size()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    const Batch batch = batches_.test(all);
    return model_->forward(batch.input)
        .argmax(1)
        .eq(batch.target)
        .to(at::kDouble)
        .mean()
        .item<double>();
  }

  void finish() {
    const std::string replica = fingerprint(model_->parameters());
    const double accuracy = this->accuracy();
    std::printf("rank %d: %lld steps, accuracy %.1f %%, replica %s\n",
                training_.group().rank(), static_cast<long long>(training_.steps()),
                100 * accuracy, replica.c_str());
    if (!options_.replicas.empty())
      std::ofstream(options_.replicas, std::ios::app) << replica + "\n" << std::flush;
    write_report_with(accuracy, replica);
  }

  const TrainOptions& options_;
  const Kill kill_;
  BatchMaker batches_;
  ElasticJob job_;
  std::shared_ptr<Model> model_;
  DistributedDataParallel<Model> ddp_;
  std::shared_ptr<optim::Optimizer> optimizer_;
  LrSchedule schedule_;
  ElasticSampler sampler_;
  ElasticTraining training_;
  // Kept for the report.
  Series series_;
  report::History history_;
  double seconds_ = 0;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace

void train_elastic(const TrainOptions& options, const TrainData& data) {
  ElasticRun(options, data).run();
}

}  // namespace brigade::tool
