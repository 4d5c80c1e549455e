// brigade demo: workers train one small network together, on real data, in a few seconds.
#include <torch/torch.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "brigade/brigade.h"
#include "brigade/launch.h"
#include "command.h"
#include "digits.h"

namespace brigade::tool {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kEnoughAccuracy = 0.9;

struct DemoOptions {
  int workers = 2;
  int epochs = 8;
  int steps = 0;  // 0: all of the epochs
  int batch = 32;
  std::uint64_t seed = 1;
  std::string json;
};

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

// FNV-1a over every parameter and buffer: equal only if they are equal bit by bit.
std::string fingerprint(const torch::nn::Module& module) {
  std::uint64_t hash = 14695981039346656037U;
  auto add = [&](const at::Tensor& tensor) {
    at::Tensor flat = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.data_ptr());
    for (std::size_t i = 0; i < flat.nbytes(); ++i)
      hash = (hash ^ bytes[i]) * 1099511628211U;
  };
  for (const at::Tensor& parameter : module.parameters()) add(parameter);
  for (const at::Tensor& buffer : module.buffers()) add(buffer);
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

double accuracy(DigitNet& net, const DataSet& data) {
  torch::NoGradGuard no_grad;
  at::Tensor right = net->forward(data.features).argmax(1).eq(data.labels);
  return right.to(at::kDouble).mean().item<double>();
}

// Rank 0's report: on a terminal one line that follows every step, elsewhere a line now and
// then.
class Progress {
 public:
  Progress(int steps, bool shown)
      : steps_(steps), shown_(shown), terminal_(isatty(STDOUT_FILENO) != 0) {}
  bool due(int step) const { return shown_ && (step % 20 == 0 || step == steps_); }
  void show(int step, double loss, double test_accuracy) const {
    if (!shown_ || (!terminal_ && !due(step))) return;
    std::printf("%s  step %4d/%d   loss %.4f   accuracy %.3f%s", terminal_ ? "\r" : "",
                step, steps_, loss, test_accuracy, terminal_ && step < steps_ ? "" : "\n");
    std::fflush(stdout);
  }

 private:
  int steps_;
  bool shown_;
  bool terminal_;
};

struct Outcome {
  int steps = 0;
  double seconds = 0;
  double accuracy = 0;
  std::int64_t tested = 0;
  std::vector<double> losses;             // of rank 0, one a step
  std::vector<std::string> fingerprints;  // by rank
  DdpLoggingData ddp;
  bool identical() const {
    return std::all_of(fingerprints.begin(), fingerprints.end(),
                       [&](const std::string& one) { return one == fingerprints[0]; });
  }
};

void introduce(const torch::nn::Module& net, const DataSet& data,
               const DemoOptions& options) {
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : net.parameters()) parameters += parameter.numel();
  std::printf("%d worker%s train%s one network of %" PRId64 " parameters on %" PRId64
              " digits\n",
              options.workers, options.workers > 1 ? "s" : "",
              options.workers > 1 ? "" : "s", parameters, data.size());
}

Outcome train(const ProcessGroup& group, const DemoOptions& options) {
  TrainAndTest data = split_every_fifth(digits());
  torch::manual_seed(options.seed);
  DigitNet net;
  // Small buckets, so that there are several on their way at once even in a small network.
  DistributedDataParallel ddp(net, group,
                              {.bucket_cap_mb = 0.1, .gradient_as_bucket_view = true});
  torch::optim::AdamW optimizer(ddp->parameters(), torch::optim::AdamWOptions(2e-3));
  DistributedSampler sampler(data.train.size(), group, {.seed = options.seed});

  int batch = options.batch;
  int per_epoch = static_cast<int>((sampler.size() + batch - 1) / batch);
  int steps = options.steps > 0 ? options.steps : options.epochs * per_epoch;
  if (group.rank() == 0) introduce(*net, data.train, options);
  const Progress progress(steps, group.rank() == 0);
  Outcome outcome{.tested = data.test.size()};
  if (group.rank() == 0) outcome.accuracy = accuracy(net, data.test);
  auto begin = Clock::now();
  for (int epoch = 0; outcome.steps < steps; ++epoch) {
    sampler.set_epoch(epoch);
    while (auto rows = sampler.next(batch)) {
      at::Tensor index =
          torch::tensor(std::vector<std::int64_t>(rows->begin(), rows->end()));
      at::Tensor answer = ddp->forward(data.train.features.index_select(0, index));
      at::Tensor loss = torch::nn::functional::cross_entropy(
          answer, data.train.labels.index_select(0, index));
      ddp->zero_grad();
      loss.backward();
      optimizer.step();
      outcome.losses.push_back(loss.item<double>());
      ++outcome.steps;
      if (progress.due(outcome.steps)) outcome.accuracy = accuracy(net, data.test);
      progress.show(outcome.steps, outcome.losses.back(), outcome.accuracy);
      if (outcome.steps == steps) break;
    }
  }
  outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  outcome.fingerprints = group.exchange("the demo's replicas", fingerprint(*net));
  outcome.ddp = ddp->logging_data();
  return outcome;
}

void report(const Outcome& outcome, const DemoOptions& options) {
  std::printf("\n  test accuracy  %.3f, on %" PRId64 " digits that were not trained on\n",
              outcome.accuracy, outcome.tested);
  if (outcome.identical()) {
    std::printf("  replicas       bit-identical on all %d workers (%s)\n", options.workers,
                outcome.fingerprints[0].c_str());
  } else {
    std::printf("  replicas       DIFFERENT:");
    for (const std::string& one : outcome.fingerprints) std::printf(" %s", one.c_str());
    std::printf("\n");
  }
  std::printf("  gradients      %.2f MB a step, in %zu buckets\n",
              static_cast<double>(outcome.ddp.parameter_bytes) / 1e6,
              outcome.ddp.bucket_bytes.size());
  std::printf("  time           %.1f s, %.1f ms a step\n", outcome.seconds,
              outcome.seconds * 1000 / outcome.steps);
}

void suggest() {
  std::printf(
      "\nTry next:\n"
      "  brigade demo -n 4              the same with four workers\n"
      "  brigade run -n 2 PROGRAM       your own program, in two processes\n"
      "  docs/from_single_process_to_ddp.md   the five lines that make it distributed\n");
}

void write_json(const Outcome& outcome, const DemoOptions& options) {
  nlohmann::json json = {{"workers", options.workers},
                         {"seed", options.seed},
                         {"batch_per_worker", options.batch},
                         {"threads_per_worker", at::get_num_threads()},
                         {"steps", outcome.steps},
                         {"seconds", outcome.seconds},
                         {"test_accuracy", outcome.accuracy},
                         {"losses", outcome.losses},
                         {"fingerprints", outcome.fingerprints},
                         {"replicas_identical", outcome.identical()},
                         {"gradient_bytes", outcome.ddp.parameter_bytes},
                         {"bucket_bytes", outcome.ddp.bucket_bytes}};
  std::ofstream file(options.json);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) throw ConfigError("--json: cannot write '" + options.json + "'");
}

void work(const DemoOptions& options) {
  ProcessGroup group = init_process_group({.backend = "gloo"});
  Outcome outcome = train(group, options);
  if (group.rank() != 0) return;
  report(outcome, options);
  if (!options.json.empty()) write_json(outcome, options);
  if (!outcome.identical()) throw Error("the workers' replicas differ");
  if (outcome.accuracy < kEnoughAccuracy) {
    throw Error("test accuracy " + std::to_string(outcome.accuracy) +
                " is below 0.9: the network has not learned (too few steps?)");
  }
  suggest();
}

}  // namespace

void add_demo(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* demo = app.add_subcommand(
      "demo", "train a small network on handwritten digits with several workers");
  demo->footer("Example:\n  brigade demo -n 4 --epochs 10 --json demo.json");
  demo->add_option("-n,--workers", options->workers, "processes, each a replica")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  demo->add_option("--epochs", options->epochs, "times through the training digits")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  demo->add_option("--steps", options->steps,
                   "stop after so many steps, whatever the epochs")
      ->check(CLI::Range(1, 10000000));
  demo->add_option("--batch", options->batch, "digits a worker and step")
      ->check(CLI::Range(1, 1438))
      ->capture_default_str();
  demo->add_option("--seed", options->seed, "of weights and order")->capture_default_str();
  demo->add_option("--json", options->json, "write the results to this file as well");
  demo->callback([options] {
    launch(options->workers, [&](int) { work(*options); }, {.prefix = false});
  });
}

}  // namespace brigade::tool
