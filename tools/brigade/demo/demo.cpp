// brigade demo: trains one small network on real data under every hook, side by side.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/atomic_file.h"
#include "brigade/error.h"
#include "brigade/hooks.h"
#include "common/command.h"
#include "common/hook_choice.h"
#include "common/options.h"
#include "common/shaped_link.h"
#include "common/terminal.h"
#include "demo/files.h"
#include "demo/kill.h"
#include "demo/print.h"
#include "demo/side_by_side.h"
#include "demo/verdict.h"
#include "report/run_record.h"

namespace brigade::tool {
namespace {

constexpr double kEnoughAccuracy = 0.9;
constexpr int kDefaultSteps = 160;
constexpr int kLinkSteps = 30;  // each takes a tenth of a second under plain all-reduce
constexpr const char* kOff = "off";

struct DemoOptions {
  int workers = 2;
  int steps = 0;  // 0: the default
  int batch = 32;
  double learning_rate = DemoTraining().learning_rate;
  std::uint64_t seed = 1;
  std::vector<std::string> hooks;  // empty: all
  std::string link = "100mbit";
  std::string device = "cpu";
  std::string out = "out/demo";
  std::string json;

  bool on_cpu() const { return device == "cpu"; }
  DemoTraining training() const {
    return {.steps = steps > 0 ? steps : kDefaultSteps,
            .batch = batch,
            .learning_rate = learning_rate,
            .seed = seed};
  }
};

// Every hook of the table, set so that it works within so few steps.
std::vector<std::string> all_hooks() {
  std::vector<std::string> specs;
  for (const HookEntry& entry : hook_table())
    specs.emplace_back(entry.in_short_runs.empty() ? entry.name : entry.in_short_runs);
  return specs;
}

// A few that differ, for the slow link, with compression from the first step on.
std::vector<std::string> hooks_for_link(const std::vector<std::string>& hooks) {
  std::vector<std::string> some;
  for (const std::string& spec : hooks) {
    const std::string name = spec.substr(0, spec.find(':'));
    for (const char* wanted : {"allreduce", "fp16", "int8", "powersgd"}) {
      if (name == wanted) some.push_back(spec);
    }
  }
  if (some.size() < 2) some = hooks;
  // Steps that only average exactly say nothing about the hook.
  for (std::string& spec : some) spec = from_the_first_step(spec);
  return some;
}

void set_up(RunRecord& record, const DemoOptions& options, const std::string& command) {
  const DemoTraining training = options.training();
  record.title = "One network, every hook";
  record.command = command;
  std::vector<std::pair<std::string, std::string>> setup{
      {"ranks", std::to_string(options.workers) + " processes, " +
                    (options.on_cpu() ? "Gloo" : "on GPUs")},
      {"steps", std::to_string(training.steps)},
      {"batch", std::to_string(training.batch) + " digits a rank"},
      {"learning rate", readable(training.learning_rate)},
      {"seed", std::to_string(training.seed)}};
  setup.insert(setup.end(), record.setup.begin(), record.setup.end());
  const auto machine = machine_setup();
  setup.insert(setup.end(), machine.begin(), machine.end());
  record.setup = std::move(setup);
}

// Adds the results over the link, or says why there are none.
void add_link(Terminal& terminal, RunRecord& record, const DemoOptions& options,
              const std::vector<std::string>& hooks) {
  if (options.link == kOff || !options.on_cpu()) return;
  const double rate = parse_rate(options.link, "--link");
  std::string missing =
      options.workers > 1 ? ShapedLink::missing() : "one rank sends nothing";
  terminal.line();
  if (!missing.empty()) {
    terminal.line("Not over a link of " + rate_text(rate) + ": " + missing + ".");
    return;
  }
  terminal.line("The same over a real link of " + rate_text(rate) +
                " between network namespaces:");
  const ShapedLink link(options.workers, rate);
  DemoTraining training = options.training();
  training.steps = std::min(training.steps, kLinkSteps);
  RunRecord slow =
      train_side_by_side({.workers = options.workers, .backend = "gloo", .link = &link},
                         hooks_for_link(hooks), training);
  for (Series& series : slow.series) record.series.push_back(std::move(series));
  record.setup.emplace_back("link", rate_text(rate) + " between network namespaces, " +
                                        std::to_string(kLinkSteps) + " steps at most");
}

void check(const DemoOptions& options, const std::vector<std::string>& hooks) {
  std::set<std::string> seen;
  for (const std::string& spec : hooks) {
    make_hook(spec);  // throws for an unknown one
    if (!seen.insert(spec).second) throw ConfigError("--hook " + spec + " is given twice");
  }
  if (options.link != kOff) parse_rate(options.link, "--link");
  check_demo_folder(options.out);
  if (!options.json.empty()) base::check_output_file(options.json, "--json");
}

// Otherwise somebody would compare all-reduce with itself.
void warn_of_late_starts(const std::vector<std::string>& hooks, int steps) {
  for (const std::string& spec : hooks) {
    const std::string why = why_it_never_compresses(spec, steps);
    if (!why.empty()) std::fprintf(stderr, "brigade demo: --hook %s\n", why.c_str());
  }
}

int demo(const DemoOptions& options, const std::string& command) {
  const std::vector<std::string> hooks =
      options.hooks.empty() ? all_hooks() : options.hooks;
  check(options, hooks);
  warn_of_late_starts(hooks, options.training().steps);
  Terminal terminal;
  terminal.line(std::to_string(options.workers) +
                (options.workers > 1 ? " ranks train" : " rank trains") +
                " one network on handwritten digits under " + std::to_string(hooks.size()) +
                (hooks.size() > 1 ? " hooks in turns:" : " hook:"));
  RunRecord record = train_side_by_side({.workers = options.workers,
                                         .backend = options.on_cpu() ? "gloo" : "auto",
                                         .device = options.device},
                                        hooks, options.training());
  set_up(record, options, command);
  add_link(terminal, record, options, hooks);
  record.verdict = verdict(record.series);

  std::string link_title;
  for (const Series& series : record.series) {
    if (&series != &record.series[0] && series.link == link_title) continue;
    link_title = series.link;
    terminal.line();
    terminal.line(terminal.paint(
        Paint::bold, link_title.empty() ? "Over loopback" : "Over " + link_title));
    print_table(terminal, record.series, link_title);
  }
  terminal.line();
  const bool same = print_replicas(terminal, record.series);
  for (const std::string& sentence : record.verdict) terminal.sentence(sentence);
  if (!baseline_of(record.series[0], record.series))
    terminal.sentence("Give --hook allreduce too, to compare with it.");
  terminal.line();
  write_demo_files(terminal, record, options.out);
  if (!options.json.empty())
    base::write_whole(options.json, to_json(record).dump(1) + "\n");
  if (!same) throw Error("the ranks' replicas differ");
  const double accuracy = record.series[0].test_accuracy;
  if (options.steps == 0 && accuracy < kEnoughAccuracy) {
    throw Error("test accuracy under " + record.series[0].hook + " is " +
                decimals(accuracy, 3) + ", below 0.9: the network has not learned");
  }
  print_suggestions(terminal);
  return 0;
}

std::string typed(const DemoOptions& options) {
  std::string text = "brigade demo -n " + std::to_string(options.workers);
  if (options.steps > 0) text += " --steps " + std::to_string(options.steps);
  if (options.batch != DemoOptions().batch)
    text += " --batch " + std::to_string(options.batch);
  if (options.learning_rate != DemoOptions().learning_rate)
    text += " --lr " + readable(options.learning_rate);
  if (options.seed != DemoOptions().seed) text += " --seed " + std::to_string(options.seed);
  for (const std::string& hook : options.hooks) text += " --hook " + hook;
  if (options.link != DemoOptions().link) text += " --link " + options.link;
  if (!options.on_cpu()) text += " --device " + options.device;
  return text;
}

// --kill always runs the same training.
void refuse_other_options_than_hook_and_out(const CLI::App& command) {
  for (const char* name : {"--workers", "--steps", "--batch", "--lr", "--seed", "--link",
                           "--device", "--json"})
    if (command.get_option(name)->count() > 0)
      throw ConfigError(std::string("--kill goes with --hook and --out, not with ") + name);
}

}  // namespace

void add_demo(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command = app.add_subcommand(
      "demo", "train a small network on handwritten digits under every hook");
  command->footer(
      "Example:\n  brigade demo -n 4 --hook allreduce --hook powersgd:rank=4,start=10");
  command->add_option("-n,--workers", options->workers, "processes, each a replica")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--hook", options->hooks,
                      "a hook with its options; may be given again (default: all)");
  command
      ->add_option("--steps", options->steps,
                   "of each training (default: " + std::to_string(kDefaultSteps) + ")")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--batch", options->batch, "digits a rank and step")
      ->check(CLI::Range(1, 1438))
      ->capture_default_str();
  command->add_option("--lr", options->learning_rate, "learning rate; falls to 0")
      ->check(number_between(1e-9, 10))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of weights and order")
      ->check(seed_number())
      ->capture_default_str();
  command
      ->add_option("--link", options->link,
                   "as root, some hooks over a link of this rate too, or off")
      ->capture_default_str();
  add_device_option(*command, options->device,
                    "cpu, or cuda: a GPU a process, shared where there are fewer; no link");
  command->add_option("--out", options->out, "folder for report, metrics and trace")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--json", options->json, "write all results to this file as well")
      ->check(not_empty());
  auto kill = std::make_shared<bool>(false);
  command->add_flag("--kill", *kill,
                    "instead: kill one of three workers while they train, and go on");
  command->callback([options, kill, command, &exit_code] {
    if (*kill) {
      refuse_other_options_than_hook_and_out(*command);
      return demo_kill(options->hooks, options->out);
    }
    exit_code = demo(*options, typed(*options));
  });
}

}  // namespace brigade::tool
