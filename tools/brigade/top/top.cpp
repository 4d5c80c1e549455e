// brigade top: looks at a running job of this host, from outside.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "brigade/error.h"
#include "common/command.h"
#include "top/frame.h"
#include "top/screen.h"

namespace brigade::tool {
namespace {

using launching::JobView;

constexpr const char* kTopExamples = R"(Examples:
  brigade top                    the job that runs here, until q is pressed
  brigade top 4711               the job of launcher 4711, where several run
  brigade top --once             one look, without terminal codes
  brigade top --json             one look for machines

Shows the workers of this host, and on the first host of a job those of all its hosts; of an elastic job run it
on each. Jobs are those that brigade run, brigade train and brigade::launch() start as the same user.)";

struct TopOptions {
  std::string job;
  double every = 1;
  bool once = false;
  bool json = false;
};

std::string short_command(const JobView& view) {
  const std::string& all = view.job.command;
  return all.size() <= 40 ? all : all.substr(0, 40) + "…";
}

// The status folder of the job that is meant.
std::string chosen_job(const std::string& name) {
  std::string running;
  std::vector<std::string> fitting;
  for (const std::string& folder : launching::find_jobs()) {
    const auto view = launching::read_job(folder);
    if (!view) continue;
    const std::string pid = std::to_string(view->job.pid);
    running += (running.empty() ? "" : ", ") + pid + " (" + short_command(*view) + ")";
    if (name.empty() || name == pid || name == view->job.run_id) fitting.push_back(folder);
  }
  if (running.empty()) {
    throw Error(
        "no job of this user runs on this host; brigade run and brigade train start one");
  }
  if (fitting.empty()) throw Error("no job '" + name + "' runs here, only " + running);
  if (fitting.size() > 1)
    throw ConfigError("several jobs run here, name one by its launcher: " + running);
  return fitting[0];
}

void print_once(const JobView& view, bool json) {
  if (json) {
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    std::printf("%s\n", frame_json(view).dump(2, ' ', false, replace).c_str());
    return;
  }
  const Terminal plain = Terminal::plain();
  for (const std::string& line : frame_of(view, plain)) std::printf("%s\n", line.c_str());
}

// Until the job has ended, or somebody wants no more.
bool show_until_end(const std::string& folder, const Terminal& terminal, double every) {
  const std::chrono::milliseconds pause(std::lround(1000 * every));
  const Screen screen(terminal);
  while (const auto view = launching::read_job(folder)) {
    screen.draw(frame_of(*view, terminal));
    if (screen.asked_to_end(pause)) return false;
  }
  return true;
}

void top(const TopOptions& options) {
  const std::string folder = chosen_job(options.job);
  const Terminal terminal;
  if (options.once || options.json || !terminal.live()) {
    const auto view = launching::read_job(folder);
    if (!view) throw Error("the job has just ended");
    return print_once(*view, options.json);
  }
  if (show_until_end(folder, terminal, options.every)) std::printf("the job has ended\n");
}

}  // namespace

void add_top(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* command =
      app.add_subcommand("top", "look at a running job: ranks, steps, bytes, stragglers");
  command->footer(kTopExamples);
  command->add_option("JOB", options->job,
                      "its launcher's process, or its name (default: the only one)");
  command->add_option("--every", options->every, "seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", options->once, "print one look and end");
  command->add_flag("--json", options->json, "print one look as JSON and end");
  command->callback([options] { top(*options); });
}

}  // namespace brigade::tool
