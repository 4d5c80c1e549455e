// brigade run: starts the workers of a job, with torchrun's flags and variables.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "brigade/launch.h"
#include "common/accelerator.h"
#include "common/command.h"
#include "common/libtorch_log.h"
#include "common/removed.h"

namespace brigade::tool {
namespace {

struct RunArguments {
  std::string workers = "1";
  std::string nodes = "1";
  int node_rank = 0;
  std::string master_addr;
  int master_port = 0;
  bool standalone = false;
  std::string endpoint;
  std::string backend = "static";
  std::string run_id;
  std::optional<int> max_restarts = std::nullopt;  // without it: 0, or kReplacements
  bool elastic = false;
  std::string join;
  std::optional<int> min_workers;
  bool replace = false;
  std::optional<int> grace_ms;
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string filter;
  bool module = false;
  bool no_python = false;
};

int to_int(const std::string& text, const std::string& flag, int smallest, int largest) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < smallest ||
      value > largest) {
    throw ConfigError(flag + " is '" + text + "'; it must be a number from " +
                      std::to_string(smallest) + " to " + std::to_string(largest));
  }
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

int count_workers(const std::string& text) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (text == "cpu") return cores;
  if (text == "auto" || text == "gpu") {
    const int devices = count_cuda_devices();
    if (devices == 0 && text == "gpu") {
      throw ConfigError("--nproc-per-node is 'gpu', and no CUDA device can be used here");
    }
    return devices ? devices : cores;
  }
  if (text.find_first_not_of("-0123456789") != std::string::npos || text.empty()) {
    throw ConfigError("--nproc-per-node is '" + text +
                      "'; it must be a number, auto, cpu or gpu");
  }
  return to_int(text, "--nproc-per-node", 1, 4096);
}

struct NodeRange {
  int least = 1;
  int most = 1;
};

// "2", or torchrun's "2:4" for jobs that grow and shrink.
NodeRange count_nodes(const std::string& text, bool elastic) {
  constexpr int kMost = 16'384;
  const auto parts = split(text, ':');
  if (parts.size() != 2) {
    const int nodes = to_int(text, "--nnodes", 1, kMost);
    return {nodes, nodes};
  }
  NodeRange range;
  range.least = to_int(parts[0], "--nnodes' least", 1, kMost);
  range.most = to_int(parts[1], "--nnodes' most", range.least, kMost);
  if (range.least != range.most && !elastic) {
    throw ConfigError("--nnodes is '" + text +
                      "'; a range is for jobs with --elastic, others take one number");
  }
  return range;
}

// "3" for all workers, or "0:1,1:2" for some; 1 is stdout, 2 stderr, 3 both.
StreamChoice streams(const std::string& text, const std::string& flag) {
  StreamChoice choice;
  const auto one = [&](const std::string& number) {
    if (number.size() != 1 || number[0] < '0' || number[0] > '3') {
      throw ConfigError(
          flag + " is '" + text +
          "'; it must be 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a list "
          "such as 0:1,1:3 by local rank");
    }
    return static_cast<Streams>(number[0] - '0');
  };
  if (text.find(':') == std::string::npos) {
    choice.all = one(text);
    return choice;
  }
  for (const std::string& entry : split(text, ',')) {
    const auto parts = split(entry, ':');
    if (parts.size() != 2) one("");
    choice.by_local_rank[to_int(parts[0], flag, 0, 4095)] = one(parts[1]);
  }
  return choice;
}

void set_master(const RunArguments& arguments, LaunchOptions& options) {
  std::string address = arguments.master_addr;
  int port = arguments.master_port;
  if (arguments.backend != "static" && arguments.backend != "c10d") {
    throw ConfigError("--rdzv-backend is '" + arguments.backend +
                      "'; it must be static or c10d");
  }
  if (!arguments.endpoint.empty() && address.empty()) {
    const size_t colon = arguments.endpoint.rfind(':');
    address = arguments.endpoint.substr(0, colon);
    if (colon != std::string::npos) {
      port =
          to_int(arguments.endpoint.substr(colon + 1), "--rdzv-endpoint's port", 0, 65'535);
    }
  }
  if (options.nodes > 1 && address.empty()) {
    throw ConfigError(
        "--nnodes is " + std::to_string(options.nodes) +
        ": give --master-addr, the address of node rank 0's host, on every host");
  }
  if (options.nodes > 1 && port == 0) port = 29500;
  if (address.size() > 2 && address.front() == '[')
    address = address.substr(1, address.size() - 2);
  if (!address.empty()) options.master_addr = address;
  options.master_port = static_cast<std::uint16_t>(port);
}

// How many workers --replace replaces without --max-restarts.
constexpr int kReplacements = 100;

std::optional<ElasticLaunch> elastic_from(const RunArguments& arguments) {
  if (arguments.elastic) {
    ElasticLaunch elastic{.replace = arguments.replace};
    if (arguments.min_workers) elastic.min_workers = *arguments.min_workers;
    if (arguments.grace_ms) elastic.grace = std::chrono::milliseconds(*arguments.grace_ms);
    return elastic;
  }
  const char* option = arguments.replace       ? "--replace"
                       : arguments.min_workers ? "--min-workers"
                       : arguments.grace_ms    ? "--grace"
                                               : nullptr;
  if (option) throw ConfigError(std::string(option) + " is for jobs with --elastic");
  return std::nullopt;
}

// Expands --join ADDR, which is short for what another host of an elastic job needs.
RunArguments with_join_spelled_out(RunArguments arguments) {
  if (arguments.join.empty()) return arguments;
  if (arguments.replace || arguments.min_workers || arguments.grace_ms ||
      arguments.max_restarts.value_or(0) || arguments.standalone) {
    throw ConfigError(
        "--join goes without --replace, --max-restarts, --min-workers, --grace and "
        "--standalone: the host that began the job decides these");
  }
  arguments.elastic = true;
  arguments.endpoint = arguments.join;
  arguments.nodes = "1:16384";
  arguments.node_rank = std::max(1, arguments.node_rank);
  return arguments;
}

LaunchOptions options_from(const RunArguments& given) {
  const RunArguments arguments = with_join_spelled_out(given);
  LaunchOptions options;
  const NodeRange nodes =
      arguments.standalone ? NodeRange{} : count_nodes(arguments.nodes, arguments.elastic);
  options.nodes = nodes.most;
  options.node_rank = arguments.standalone ? 0 : arguments.node_rank;
  if (!arguments.standalone) set_master(arguments, options);
  options.run_id = arguments.run_id == "none" ? "" : arguments.run_id;
  const int replacements = arguments.elastic && arguments.replace ? kReplacements : 0;
  options.max_restarts = arguments.max_restarts.value_or(replacements);
  options.elastic = elastic_from(arguments);
  if (options.elastic) options.elastic->min_nodes = nodes.least;
  options.log_dir = arguments.log_dir;
  options.redirects = streams(arguments.redirects, "--redirects");
  options.tee = streams(arguments.tee, "--tee");
  for (const std::string& rank : split(arguments.filter, ',')) {
    options.local_ranks_filter.push_back(to_int(rank, "--local-ranks-filter", 0, 4095));
  }
  return options;
}

// Puts the interpreter before a Python script or module, as torchrun does.
std::vector<std::string> command_from(const RunArguments& arguments,
                                      std::vector<std::string> program) {
  if (program.empty()) throw ConfigError("no PROGRAM given (see brigade run --help)");
  if (program[0] == "--") program.erase(program.begin());
  if (program.empty()) throw ConfigError("no PROGRAM given (see brigade run --help)");
  if (program[0].starts_with('-')) {
    const std::string instead = instead_of(program[0]);
    throw ConfigError("unknown option " + program[0].substr(0, program[0].find('=')) +
                      (instead.empty() ? " (see brigade run --help)" : ": " + instead));
  }
  if (arguments.module && arguments.no_python) {
    throw ConfigError("--module and --no-python contradict each other");
  }
  const bool script = program[0].ends_with(".py") && !arguments.no_python;
  if (!script && !arguments.module) return program;
  const char* python = std::getenv("PYTHON_EXEC");
  std::vector<std::string> command{python && *python ? python : "python3", "-u"};
  if (arguments.module) command.push_back("-m");
  if (script && !arguments.module && access(program[0].c_str(), R_OK) != 0) {
    throw LaunchError("cannot run " + program[0] + ": there is no such script", 127);
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

void run(const RunArguments& arguments, const std::vector<std::string>& program) {
  const LaunchOptions options = options_from(arguments);
  // A user who set it for an earlier version relies on a protection that is gone.
  if (options.nodes > 1 && std::getenv("BRIGADE_SECRET"))
    throw ConfigError("BRIGADE_SECRET is set, and means nothing: " +
                      instead_of("--secret") + "; then unset it");
  const auto command = command_from(arguments, program);
  const int workers = count_workers(arguments.workers);
  if (!std::getenv("OMP_NUM_THREADS")) {
    std::fprintf(
        stderr,
        "brigade run: OMP_NUM_THREADS=%d for each of %d workers; set it to change that\n",
        threads_per_worker(workers), workers);
  }
  quiet_libtorch_log();
  launch(workers, command, options);
}

constexpr const char* kExamples = R"(Examples:
  brigade run -n 2 ./train --epochs 3
  brigade run -n 4 train.py
  brigade run -n 8 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 ./train   (on 10.0.0.1)
  brigade run -n 8 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 ./train   (on the other)
  brigade run --elastic -n 8 --nnodes 1:4 --master-addr 10.0.0.1 ./train     (on 10.0.0.1)
  brigade run --join 10.0.0.1 -n 8 ./train                                   (on others, at any time)

The exit code is that of the first worker that failed, or 128 + the signal that ended it.
Options that torchrun knows can be written with underscores, and set through PET_NAME.)";

// Adds an option under torchrun's name with dashes, the same name with underscores, and
// PET_NAME.
template <class T>
CLI::Option* add(CLI::App& app, const std::string& short_name, const std::string& name,
                 T& value, const std::string& help) {
  std::string names = short_name + "--" + name;
  std::string variable = "PET_";
  std::string underscored = name;
  std::ranges::replace(underscored, '-', '_');
  for (char c : underscored) variable += static_cast<char>(std::toupper(c));
  if (underscored != name) names += ",--" + underscored;
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, bool>) {
    option = app.add_flag(names, value, help);
  } else {
    option = app.add_option(names, value, help)->capture_default_str();
  }
  return option->envname(variable);
}

}  // namespace

void add_run(CLI::App& app, int&) {
  CLI::App* run_app = app.add_subcommand(
      "run", "[OPTIONS] PROGRAM [ARGUMENTS...]: start workers, as torchrun does");
  run_app->prefix_command();
  run_app->footer(kExamples);
  auto a = std::make_shared<RunArguments>();
  add(*run_app, "-n,", "nproc-per-node", a->workers,
      "workers on this host: a number, auto, cpu or gpu");
  add(*run_app, "", "nnodes", a->nodes,
      "hosts of the job; with --elastic a range, MIN:MAX");
  add(*run_app, "", "node-rank", a->node_rank, "which of the hosts this is, from 0");
  add(*run_app, "", "master-addr", a->master_addr, "address of node rank 0's host");
  add(*run_app, "", "master-port", a->master_port,
      "its port; one host: a free one, several: 29500")
      ->check(CLI::Range(0, 65'535));
  add(*run_app, "", "standalone", a->standalone,
      "one host, whatever else is said about hosts");
  add(*run_app, "", "max-restarts", a->max_restarts,
      "start all workers again so often when one fails");
  run_app->add_flag("--elastic", a->elastic,
                    "go on when a worker dies: for programs that call join_job()");
  run_app
      ->add_option("--join", a->join,
                   "this host joins the elastic job whose first host is at ADDR[:PORT]")
      ->type_name("ADDR");
  run_app->add_option("--min-workers", a->min_workers,
                      "with --elastic: end when fewer are left and none is to come");
  run_app->add_flag("--replace", a->replace,
                    "with --elastic: start a new worker for one that died, --max-restarts "
                    "in all (100 unless given)");
  run_app->add_option("--grace", a->grace_ms,
                      "with --elastic: milliseconds that those who are left wait for a "
                      "replacement before they go on");
  add(*run_app, "", "log-dir", a->log_dir, "folder for log files and error files");
  add(*run_app, "-r,", "redirects", a->redirects,
      "streams that go to log files only: 1 stdout, 2 stderr, 3 both; 0:1,1:3 by local "
      "rank");
  add(*run_app, "-t,", "tee", a->tee,
      "streams that go to log files as well as the console");
  add(*run_app, "", "local-ranks-filter", a->filter,
      "show only these local ranks, e.g. 0,1");
  add(*run_app, "-m,", "module", a->module, "PROGRAM is a Python module");
  add(*run_app, "", "no-python", a->no_python,
      "PROGRAM is no Python script, whatever its name");
  add(*run_app, "", "rdzv-endpoint", a->endpoint,
      "HOST:PORT, the same as the two master options");
  add(*run_app, "", "rdzv-backend", a->backend,
      "static or c10d: brigade does the same for both");
  add(*run_app, "", "rdzv-id", a->run_id,
      "name of the job, TORCHELASTIC_RUN_ID of the workers");
  run_app->callback([run_app, a] { run(*a, run_app->remaining()); });
}

}  // namespace brigade::tool
