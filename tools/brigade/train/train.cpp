// brigade train: a small trainer for digits, MNIST-like images and text.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <sstream>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "brigade/checkpoint.h"
#include "brigade/hooks.h"
#include "brigade/launch.h"
#include "brigade/optim.h"
#include "common/command.h"
#include "common/hook_choice.h"
#include "common/json.h"
#include "common/options.h"
#include "common/shaped_link.h"
#include "train/batches.h"
#include "train/elastic.h"
#include "train/lr_schedule.h"
#include "train/training.h"

namespace brigade::tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  brigade train                                         digits, two workers
  brigade train --data text:book.txt --steps 500 --hook fp16
  brigade train --data idx:mnist -n 4 --hook powersgd:rank=2,start=100 \
      --optimizer sgd:lr=0.1,momentum=0.9 --schedule cosine:warmup=50
  brigade train --steps 1000 --checkpoint run1 --save-every 100 --resume
  brigade run -n 8 --nnodes 2 … brigade train …         on several hosts

Data: digits; idx:FOLDER with train-images-idx3-ubyte and its kin; text:FILE; files may be
compressed, as FILE.gz. Every fifth digit, or the last tenth of a text, is for the test.
Schedules: constant, cosine:warmup=N,floor=F, step:every=N,factor=F,warmup=N.
Exits with 2 for what cannot be used as it was given, with 1 when training fails.)";

// The words with which this process was started.
std::string command_line() {
  std::string line;
  std::istringstream words(base::read_whole("/proc/self/cmdline"));
  for (std::string word; std::getline(words, word, '\0');) {
    if (line.empty()) word = word.substr(word.rfind('/') + 1);
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

// Checks all that can be checked without torch, before a worker starts.
void check(const TrainOptions& options, const TrainData& data, int workers) {
  make_hook(options.hook);
  optim::make_optimizer(options.optimizer)->set_lr(options.lr.value_or(0));
  const LrSchedule schedule(options.schedule, options.steps);
  const ExampleCounts counts = count_examples(data, options.model.context);
  if (counts.train < workers || counts.test < 1) {
    throw ConfigError("--data " + data.name + " has " + std::to_string(counts.train) +
                      " examples to train and " + std::to_string(counts.test) +
                      " to test on; " + std::to_string(workers) +
                      " workers need as many to train, and one to test");
  }
  if (options.precision != "fp32" && options.model.sync_batch_norm) {
    throw ConfigError("--precision " + options.precision +
                      " cannot go with --sync-batch-norm: its statistics need fp32");
  }
  if (options.diloco == 0 && (options.outer_lr || options.outer_momentum)) {
    throw ConfigError(std::string(options.outer_lr ? "--outer-lr" : "--outer-momentum") +
                      " is for --diloco");
  }
  if (options.outer_momentum == 1) {
    throw ConfigError("--outer-momentum is 1; it must be 0 to less than 1");
  }
  if (options.diloco > 0 &&
      (options.optimizer_in_backward || !options.checkpoint.empty())) {
    throw ConfigError(std::string(options.optimizer_in_backward ? "--optimizer-in-backward"
                                                                : "--checkpoint") +
                      " cannot go with --diloco in brigade train");
  }
  if (options.checkpoint.empty()) {
    if (options.resume || options.save_every > 0) {
      throw ConfigError(std::string(options.resume ? "--resume" : "--save-every") +
                        " needs --checkpoint FOLDER");
    }
    return;
  }
  base::check_output_folder(options.checkpoint, "--checkpoint");
  const auto saved = find_checkpoint(options.checkpoint);
  if (saved && !options.resume) {
    throw ConfigError("--checkpoint: '" + options.checkpoint +
                      "' has a checkpoint of step " + std::to_string(saved->step) +
                      "; --resume takes it up, another folder begins anew");
  }
}

// Otherwise somebody would compare all-reduce with itself.
void warn_of_a_late_start(const TrainOptions& options) {
  const std::string why = why_it_never_compresses(options.hook, options.steps);
  if (!why.empty()) std::fprintf(stderr, "brigade train: --hook %s\n", why.c_str());
}

// Refuses what a run that loses workers cannot do.
void check_elastic(const TrainOptions& options) {
  const char* refused = options.optimizer_in_backward     ? "--optimizer-in-backward"
                        : options.diloco > 0              ? "--diloco"
                        : options.model.sync_batch_norm   ? "--sync-batch-norm"
                        : !options.checkpoint.empty()     ? "--checkpoint"
                        : !options.json.empty()           ? "--json"
                        : !options.link.empty()           ? "--link"
                        : options.workers.device != "cpu" ? "--device"
                                                          : nullptr;
  if (refused)
    throw ConfigError(std::string(refused) + " cannot go with --elastic in brigade train");
}

// The launcher starts this program again, for each worker and each replacement.
void start_elastic(TrainOptions options) {
  check_elastic(options);
  const TrainData data = load_data(options.data);
  options.model = complete(options.model, data);
  check(options, data, 1);
  if (!options.out.empty()) base::check_output_folder(options.out, "--out");
  options.command = command_line();
  if (is_worker()) return train_elastic(options, data);
  std::vector<std::string> words;
  std::istringstream line(base::read_whole("/proc/self/cmdline"));
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  words[0] = "/proc/self/exe";
  LaunchOptions launching;
  launching.elastic = ElasticLaunch{.replace = true};
  launching.max_restarts = 10;
  launching.prefix = false;
  launch(options.workers.workers, words, launching);
}

std::unique_ptr<ShapedLink> asked_link(const TrainOptions& options) {
  const int workers = options.workers.workers;
  if (options.hosts == 0) return link_from(options.link, workers);
  if (options.link.empty())
    throw ConfigError("--hosts makes a network: take --link RATE with it");
  if (workers % options.hosts != 0) {
    throw ConfigError("--hosts is " + std::to_string(options.hosts) + ", and -n " +
                      std::to_string(workers) +
                      "; expected as many workers on each host: a multiple");
  }
  return link_from(options.link, options.hosts, workers / options.hosts);
}

void start(TrainOptions options, bool workers_given) {
  if (options.elastic) return start_elastic(std::move(options));
  const bool inside = is_worker();
  if (inside && workers_given) {
    throw ConfigError("-n: a launcher has started this process as a worker; leave -n out");
  }
  if (inside && !options.link.empty()) {
    throw ConfigError("--link: only for workers that brigade train starts itself");
  }
  const auto link = asked_link(options);
  options.link = link ? link->rate() : "";
  options.workers.link = link.get();
  const TrainData data = load_data(options.data);
  options.model = complete(options.model, data);
  if (!options.out.empty()) base::check_output_folder(options.out, "--out");
  check(options, data, inside ? 1 : options.workers.workers);
  options.command = command_line();
  const auto body = [&](const Worker& worker) {
    if (inside) check(options, data, worker.group.size());
    if (inside && worker.group.rank() == 0) warn_of_a_late_start(options);
    train(worker, options, data);
  };
  if (inside) return run_as_worker(options.workers, body);
  warn_of_a_late_start(options);
  run_workers(options.workers, body);
}

void add_data_options(CLI::App& command, TrainOptions& options) {
  command.add_option("--data", options.data, "digits, idx:FOLDER or text:FILE")
      ->capture_default_str();
  command.add_option("--model", options.model.model,
                     "mlp, cnn or transformer (default: what suits the data)");
  command
      .add_option("--width", options.model.width,
                  "of its layers (default: mlp 128, cnn 32, transformer 64)")
      ->check(CLI::Range(1, 65536));
  command.add_option("--layers", options.model.layers, "of an mlp or a transformer")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command.add_option("--context", options.model.context, "characters a transformer sees")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_flag(
      "--sync-batch-norm", options.model.sync_batch_norm,
      "a norm after each convolution of a cnn, over the batches of all workers");
}

void add_training_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option(
          "--precision", options.precision,
          "of forward and backward passes: fp32, or bf16, in which gradients travel "
          "as well; the optimizer stays in fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--hook", options.hook, "how gradients are reduced (see brigade info)")
      ->capture_default_str();
  command
      .add_option("--optimizer", options.optimizer, "with its options (see brigade info)")
      ->capture_default_str();
  command.add_flag("--optimizer-in-backward", options.optimizer_in_backward,
                   "step each parameter as soon as its gradient is reduced");
  command
      .add_option("--diloco", options.diloco,
                  "steps that workers train apart before they average parameters, with "
                  "--hook, by DiLoCo; 0: average gradients")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  command
      .add_option("--outer-lr", options.outer_lr,
                  "with --diloco: of the step on what the workers learned apart, more than "
                  "0 (default: 0.7)")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--outer-momentum", options.outer_momentum,
                  "with --diloco: of that step, 0 to less than 1 (default: 0.9)")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--lr", options.lr, "learning rate, instead of the optimizer's own")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--schedule", options.schedule,
                  "of the learning rate: constant, cosine, step or one_cycle, with options")
      ->capture_default_str();
  command.add_option("--steps", options.steps, "to train in all")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  command.add_option("--batch", options.batch, "examples a worker and step")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      .add_option("--evaluate-every", options.evaluate_every, "steps; 0: at the end only")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  command
      .add_option("--check-every", options.check_every,
                  "steps after which the workers compare their parameters; 0: never")
      ->check(CLI::Range(0, 1'000'000'000))
      ->capture_default_str();
  command.add_flag("--elastic", options.elastic,
                   "go on when a worker dies, and replace it");
  command.add_option("--kill-at", options.kill_at)->group("");
  command.add_option("--replicas", options.replicas)->group("");
  command.add_option("--seed", options.seed, "of weights and order")
      ->check(seed_number())
      ->capture_default_str();
  command.add_option("--bucket-mb", options.bucket_mb, "size of a bucket of gradients")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_output_options(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--checkpoint", options.checkpoint,
                  "folder to save the run in, at its end and on Ctrl-C")
      ->check(not_empty())
      ->type_name("FOLDER");
  command.add_option("--save-every", options.save_every, "steps; 0: at the end only")
      ->check(CLI::Range(0, 1'000'000'000));
  command.add_flag("--resume", options.resume,
                   "take the run in --checkpoint up, where there is one");
  command
      .add_option(
          "--out", options.out,
          "folder for report.html, metrics.jsonl, trace.json and TensorBoard's events")
      ->check(not_empty())
      ->type_name("FOLDER");
  command
      .add_option(
          "--link", options.link,
          "let the workers talk over a link of this rate, such as 100mbit (root only)")
      ->type_name("RATE");
  command
      .add_option("--hosts", options.hosts,
                  "with --link: hosts that share the workers; else every worker is one")
      ->check(CLI::Range(1, 64));
  add_json_option(command, options.json);
}

}  // namespace

void add_train(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand(
      "train", "train a small network on digits, images or text of your own");
  command->footer(kExamples);
  add_worker_options(*command, options->workers);
  add_data_options(*command, *options);
  add_training_options(*command, *options);
  add_output_options(*command, *options);
  command->callback(
      [options, command] { start(*options, command->count("--workers") > 0); });
}

}  // namespace brigade::tool
