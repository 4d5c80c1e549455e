#include "train/training.h"

#include <torch/nn/functional/loss.h>

#include <chrono>
#include <cinttypes>
#include <cmath>
#include <memory>
#include <set>

#include "brigade/checkpoint.h"
#include "brigade/data.h"
#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "brigade/local_sgd.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "brigade/report.h"
#include "checkpoint/folder_lock.h"
#include "common/fingerprint.h"
#include "common/hook_choice.h"
#include "train/batches.h"
#include "train/interruption.h"
#include "train/lr_schedule.h"
#include "train/model.h"
#include "train/output.h"
#include "train/precision.h"

namespace brigade::tool {
namespace {

using Clock = std::chrono::steady_clock;

// Steps of a training in which the hook's error is measured, for the report.
constexpr std::int64_t kErrorSamples = 4;

double own_lr(const optim::Optimizer& optimizer) {
  return std::stod(optimizer.state({}).values.at("options.lr"));
}

// These must be equal for a resumed run to go on as the one that saved would have.
CheckpointPart run_part(const TrainOptions& options, const TrainData& data) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016" PRIx64, data.fingerprint);
  const std::map<std::string, std::string> mine{{"data", hash},
                                                {"model", options.model.model},
                                                {"precision", options.precision},
                                                {"optimizer", options.optimizer},
                                                {"batch", std::to_string(options.batch)},
                                                {"seed", std::to_string(options.seed)}};
  CheckpointPart part{.name = "run"};
  part.save = [mine] { return PartState{.values = mine}; };
  part.load = [mine](const SavedPart& saved) {
    for (const auto& [name, value] : mine) {
      const auto found = saved.states.at(0).values.find(name);
      if (found == saved.states.at(0).values.end() || found->second == value) continue;
      throw CheckpointError("the checkpoint is of a run with another " + name + ": " +
                            found->second + " there, " + value + " here");
    }
    return [] {};
  };
  return part;
}

class Training {
 public:
  Training(const Worker& worker, const TrainOptions& options, const TrainData& data)
      : worker_(worker),
        options_(options),
        interruption_(options.checkpoint.empty() ? nullptr
                                                 : std::make_unique<Interruption>()),
        batches_(data, options.model.context, worker.device),
        model_(seeded_model(data)),
        ddp_(model_, worker.group, ddp_options()),
        optimizer_(optim::make_optimizer(options.optimizer)),
        schedule_(options.schedule, options.steps),
        sampler_(static_cast<std::size_t>(batches_.train_size()), worker.group,
                 {.seed = options.seed}) {
    ddp_->set_hook(make_hook(options.diloco > 0 ? "noop" : options.hook));
    if (options.diloco > 0) {
      diloco_.emplace(*model_, *optimizer_, worker.group, diloco_options());
    }
    lr_ = options.lr.value_or(own_lr(*optimizer_));
    if (samples_errors()) errors_.emplace(worker.group, ddp_->core());
    if (options.optimizer_in_backward) optim::apply_optimizer_in_backward(ddp_, optimizer_);
    // From here on every rank draws different numbers.
    torch::manual_seed(options.seed + 1 + static_cast<std::uint64_t>(worker.group.rank()));
    if (!options.checkpoint.empty()) take_up(data);
  }

  // The log writes the files of --out.
  void open_log() {
    log_.emplace(ddp_->core(), report::TrainingLogOptions{.folder = options_.out,
                                                          .title = "brigade train",
                                                          .hook = options_.hook,
                                                          .resumed_from = first_step_,
                                                          .last_step = options_.steps});
    RunRecord& record = log_->record();
    record.command = options_.command;
    record.series[0].link = options_.link;
    const TrainOutcome now = outcome();
    record.setup = machine_setup();
    record.setup.emplace_back("data", options_.data);
    record.setup.emplace_back("model", options_.model.model + ", " +
                                           plural(now.parameters, "parameter") + ", " +
                                           options_.precision);
    record.setup.emplace_back("optimizer", options_.optimizer + ", " + options_.schedule);
    record.setup.emplace_back("workers", plural(now.workers, "worker") + " over " +
                                             now.backend + ", " +
                                             plural(options_.batch, "example") + " each");
  }

  TrainOutcome outcome() const {
    TrainOutcome outcome{.workers = worker_.group.size(),
                         .backend = worker_.group.backend(),
                         .train_examples = batches_.train_size(),
                         .test_examples = batches_.test_size(),
                         .first_step = step_};
    for (const at::Tensor& parameter : model_->parameters())
      outcome.parameters += parameter.numel();
    return outcome;
  }

  void run(TrainOutput* output) {
    if (step_ >= options_.steps) {  // nothing left to do
      const Evaluation evaluation = evaluate();
      if (log_) log_->record().series[0].test_accuracy = evaluation.accuracy;
      if (output) output->evaluated(evaluation);
    }
    while (step_ < options_.steps) {
      const double lr = lr_ * schedule_.factor(step_);
      StepPoint point = train_step(lr);
      const bool last = step_ == options_.steps;
      if (last && diloco_ && step_ % options_.diloco != 0) {  // else just averaged
        diloco_->finish();
        point.bytes_sent = traffic().total.bytes_sent;
      }
      std::optional<Evaluation> evaluation;
      if (last || (options_.evaluate_every > 0 && step_ % options_.evaluate_every == 0))
        evaluation = evaluate();
      if (evaluation) point.accuracy = evaluation->accuracy;
      if (log_) point = log_->step(point, scalars(lr, evaluation));
      const bool interrupted = is_interrupted();
      if (!options_.checkpoint.empty() &&
          (last || interrupted ||
           (options_.save_every > 0 && step_ % options_.save_every == 0))) {
        save_checkpoint(options_.checkpoint, step_, worker_.group, parts_);
        if (output) output->saved(step_);
      }
      if (output) output->step(point, lr, evaluation);
      if (!interrupted) continue;
      if (output) output->interrupted(step_);
      interruption_->take();
    }
  }

  // Collective. Writes the files of --out.
  Series finish(TrainOutcome& outcome) {
    const HookStats stats = traffic();
    const DdpLoggingData ddp = ddp_->logging_data();
    outcome.bucket_bytes = ddp.bucket_bytes;
    Series unlogged;
    Series& series = log_ ? log_->record().series[0] : unlogged;
    series.hook = options_.hook;
    series.link = options_.link;
    series.takes_mean = tolerance_of(options_.hook) >= 0;
    series.overlap = stats.total.overlap();
    series.gradient_bytes = static_cast<double>(ddp.parameter_bytes);
    series.fingerprints =
        worker_.group.gather_texts("the replicas", fingerprint(model_->parameters()));
    if (errors_) {
      report::Table table = errors_->table();
      if (!table.columns.empty()) log_->record().tables.push_back(std::move(table));
    }
    if (log_) log_->finish();
    return series;
  }

 private:
  void take_up(const TrainData& data) {
    // Claimed now and not with the first save: the training until then would be lost.
    if (worker_.group.rank() == 0) checkpoint::claim_folder(options_.checkpoint);
    parts_ = {run_part(options_, data),
              model_part(*model_),
              optimizer_part(*optimizer_, *model_),
              hook_part(ddp_->core()),
              bucket_part(ddp_->core()),
              sampler_part(sampler_),
              random_part()};
    if (options_.resume)
      step_ = load_checkpoint(options_.checkpoint, worker_.group, parts_).value_or(0);
    first_step_ = step_;
  }

  static report::Scalars scalars(double lr, const std::optional<Evaluation>& evaluation) {
    report::Scalars scalars{{"lr", lr}};
    if (evaluation) scalars.emplace_back("test_loss", evaluation->loss);
    return scalars;
  }

  std::shared_ptr<Model> seeded_model(const TrainData& data) const {
    torch::manual_seed(options_.seed);
    auto model = make_model(options_.model, data, &worker_.group);
    model->to(worker_.device);
    return model;
  }

  DdpOptions ddp_options() const {
    // Replicas may differ if the hook gives no mean, and between DiLoCo's exchanges.
    const bool equal = tolerance_of(options_.hook) >= 0 && options_.diloco == 0;
    DdpOptions options{.mixed_precision = precision_of(options_),
                       .check_replicas_every = equal ? options_.check_every : 0,
                       .bucket_cap_mb = options_.bucket_mb,
                       .gradient_as_bucket_view = true};
    if (!options_.resume) return options;
    const auto saved = find_checkpoint(options_.checkpoint);
    // Buckets of another model are left out: loading explains the mismatch better.
    if (saved && names_model(saved->buckets)) options.first_buckets = saved->buckets;
    return options;
  }

  bool names_model(const std::vector<std::vector<std::string>>& buckets) const {
    std::set<std::string> names;
    for (const auto& bucket : buckets) names.insert(bucket.begin(), bucket.end());
    const auto mine = model_->named_parameters();
    return names.size() == mine.size() && std::ranges::all_of(mine, [&](const auto& p) {
             return names.count(p.key()) > 0;
           });
  }

  optim::DiLoCoOptions diloco_options() const {
    optim::DiLoCoOptions options{.period = options_.diloco,
                                 .hook = make_hook(options_.hook)};
    if (options_.outer_lr) options.outer_lr = *options_.outer_lr;
    if (options_.outer_momentum) options.outer_momentum = *options_.outer_momentum;
    return options;
  }

  // Samples only where gradients still exist after backward(), and are a mean.
  bool samples_errors() const {
    return !options_.out.empty() && !options_.optimizer_in_backward &&
           options_.diloco == 0 && tolerance_of(options_.hook) >= 0;
  }
  // kErrorSamples of all steps, evenly spread.
  bool samples_errors_now() const {
    const std::int64_t steps = options_.steps - first_step_;
    for (std::int64_t i = 0; errors_ && i < kErrorSamples; ++i)
      if (step_ == first_step_ + steps * (2 * i + 1) / (2 * kErrorSamples)) return true;
    return false;
  }

  // Collective where there is a checkpoint to save, so that all stop after the same step.
  bool is_interrupted() const {
    return interruption_ && worker_.group.any(interruption_->raised());
  }

  StepPoint train_step(double lr) {
    const Batch batch =
        next_batch(batches_, sampler_, static_cast<std::size_t>(options_.batch));
    if (samples_errors_now()) errors_->begin();
    if (log_) log_->begin_step();
    const auto begin = Clock::now();
    optimizer_->set_lr(lr);
    const at::Tensor loss = torch::nn::functional::cross_entropy(
        ddp_->forward(batch.input).to(at::kFloat), batch.target);
    if (log_) log_->end_of(Span::Kind::forward);
    ddp_->zero_grad();
    loss.backward();
    if (log_) log_->end_of(Span::Kind::backward);
    const auto backward = Clock::now();
    if (errors_) errors_->finish(step_ + 1);
    const auto sampling = Clock::now() - backward;  // not counted as training
    if (log_) log_->leave_out();
    if (diloco_) {
      diloco_->step();
    } else if (!options_.optimizer_in_backward) {
      for (const at::Tensor& parameter : model_->parameters())
        optimizer_->step_param(parameter, parameter.grad());
    }
    const double value = loss.item<double>();
    const auto end = Clock::now() - sampling;
    if (log_) log_->end_of(Span::Kind::optimizer);
    ++step_;
    if (!std::isfinite(value)) {
      throw Error("step " + std::to_string(step_) + ": the loss is " +
                  std::to_string(value) + "; a smaller --lr may help");
    }
    const HookStats stats = traffic();
    seconds_ += std::chrono::duration<double>(end - begin).count();
    return {.step = step_,
            .seconds = seconds_,
            .step_ms = std::chrono::duration<double, std::milli>(end - begin).count(),
            .loss = value,
            .accuracy = std::nullopt,
            .bytes_sent = stats.total.bytes_sent,
            .overlap = stats.last_step.overlap()};
  }

  HookStats traffic() const { return diloco_ ? diloco_->stats() : ddp_->hook_stats(); }

  // Collective: every rank evaluates its share of the test examples.
  Evaluation evaluate() {
    torch::NoGradGuard no_grad;
    model_->eval();
    at::Tensor sums = torch::zeros({3}, at::kDouble);  // loss, right ones, all
    const int ranks = worker_.group.size();
    std::vector<std::int64_t> mine;
    const auto flush = [&] {
      if (mine.empty()) return;
      const Batch batch = batches_.test(mine);
      const at::Tensor answer = model_->forward(batch.input).to(at::kDouble);
      const at::Tensor loss = torch::nn::functional::cross_entropy(
          answer, batch.target,
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      const at::Tensor right = answer.argmax(1).eq(batch.target).sum().to(at::kDouble);
      sums += torch::tensor({loss.item<double>(), right.item<double>(),
                             static_cast<double>(batch.target.size(0))},
                            at::kDouble);
      mine.clear();
    };
    for (std::int64_t i = worker_.group.rank(); i < batches_.test_size(); i += ranks) {
      mine.push_back(i);
      if (mine.size() == 256) flush();
    }
    flush();
    if (ranks > 1) worker_.group.all_reduce(sums);
    model_->train();
    const auto* sum = sums.const_data_ptr<double>();
    return {.step = step_, .loss = sum[0] / sum[2], .accuracy = sum[1] / sum[2]};
  }

  const Worker& worker_;
  const TrainOptions& options_;
  // With --checkpoint. Made before ddp_, where ranks wait for each other, so that each has
  // one by the time it trains.
  std::unique_ptr<Interruption> interruption_;
  BatchMaker batches_;
  std::shared_ptr<Model> model_;
  DistributedDataParallel<Model> ddp_;
  std::shared_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::DiLoCo> diloco_;  // for --diloco
  LrSchedule schedule_;
  DistributedSampler sampler_;
  std::vector<CheckpointPart> parts_;
  std::optional<report::TrainingLog> log_;    // for --out
  std::optional<report::LayerError> errors_;  // for --out
  double lr_ = 0;
  std::int64_t step_ = 0;
  std::int64_t first_step_ = 0;
  double seconds_ = 0;
};

void run(Training& training, const Worker& worker, const TrainOptions& options,
         const TrainData& data) {
  if (!options.out.empty()) training.open_log();
  TrainOutcome outcome = training.outcome();
  std::optional<TrainOutput> output;
  if (worker.group.rank() == 0) {
    output.emplace(options);
    output->introduce(outcome, data);
  }
  training.run(output ? &*output : nullptr);
  Series series = training.finish(outcome);
  const bool broken = series.takes_mean && !series.identical();
  if (output) output->finish(std::move(series), outcome);
  if (broken) throw Error("the workers' replicas differ");
}

}  // namespace

void train(const Worker& worker, const TrainOptions& options, const TrainData& data) {
  auto training = std::make_unique<Training>(worker, options, data);
  try {
    run(*training, worker, options, data);
  } catch (...) {
    // Connections stay open until this process ends. If they were closed now, the other
    // ranks would report that before they learn the reason.
    static_cast<void>(training.release());
    throw;
  }
}

}  // namespace brigade::tool
