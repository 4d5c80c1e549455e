// brigade plan: which hook for which model on which network, from what this machine
// measures and a latency-bandwidth model.
#include <CLI/CLI.hpp>
#include <memory>

#include "brigade/error.h"
#include "common/command.h"
#include "common/hook_choice.h"
#include "common/json_file.h"
#include "common/options/number_between.h"
#include "common/options/number_text.h"
#include "common/options/quantities.h"
#include "common/terminal.h"
#include "common/workers.h"
#include "plan/advice.h"
#include "plan/answer.h"
#include "plan/options.h"
#include "plan/probe.h"
#include "plan/shapes.h"
#include "plan/simulation/recorded_costs.h"
#include "plan/simulation/sweep.h"
#include "plan/validate.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

constexpr int kMostSimulated = 1024;
// What messages cost is measured on so many hosts, with so many ranks on each at most.
constexpr int kProbedHosts = 4, kProbedRanks = 4;

double rate_of(const std::string& link) {
  return link == "loopback" ? 0 : parse_rate(link, "--link");
}

std::vector<double> links_from(const PlanOptions& options) {
  std::vector<double> links;
  for (const std::string& link : parse_list(options.link, "--link"))
    links.push_back(rate_of(link));
  return links;
}

Job job_from(const PlanOptions& options) {
  return {.hosts = options.hosts.front(),
          .ranks_per_host = options.gpus,
          .link_bits = rate_of(options.link),
          .compute_seconds = options.compute_ms / 1e3,
          .compute_on_cpu = options.cpu,
          .hooks_on_gpu = options.device == "cuda",
          .cores_per_rank = cores_for(options.gpus)};
}

ShapeList model_from(const PlanOptions& options) {
  if (options.params.empty() == options.model.empty())
    throw ConfigError("give one of --params N and --model FILE");
  if (!options.model.empty()) return shapes_in(options.model);
  return shapes_for(parse_count(options.params, "--params"));
}

void require_all(const PlanOptions& options) {
  if (options.link.empty())
    throw ConfigError("--link is missing: the rate between hosts, such as 1gbit");
  if (options.compute_ms < 0)
    throw ConfigError(
        "--compute is missing: milliseconds of a training step without communication, as "
        "one rank alone takes");
}

json json_of(const Probe& probe) {
  json hooks = json::array();
  for (const HookCost& cost : probe.hooks) {
    hooks.push_back({{"hook", cost.spec},
                     {"step_us", cost.step_seconds * 1e6},
                     {"ns_per_value", cost.seconds_per_value * 1e9},
                     {"bytes_per_value", cost.bytes_per_value},
                     {"piece_values", cost.piece_values},
                     {"decode_share", cost.decode_share},
                     {"spread", cost.spread}});
  }
  return {{"cores", probe.cores},
          {"latency_us", probe.machine.latency * 1e6},
          {"transport_ns_per_byte", probe.machine.transport_seconds_per_byte * 1e9},
          {"hooks", hooks}};
}

Probe measured(const PlanOptions& options, const std::vector<std::string>& specs) {
  Terminal terminal;
  terminal.progress("measuring this machine");
  Probe found = probe(specs, options.device);
  terminal.line("measured here, 2 ranks on " + std::to_string(found.cores) +
                " cores: " + decimals(found.machine.latency * 1e6, 0) + " us a message, " +
                decimals(found.machine.transport_seconds_per_byte * 1e9, 2) +
                " ns of CPU a byte sent");
  if (options.latency_us >= 0) found.machine.latency = options.latency_us * 1e-6;
  return found;
}

// Baseline first.
std::vector<std::string> specs_from(const PlanOptions& options) {
  std::vector<std::string> specs = choose_hooks(options.hooks);
  // Hooks of hooks have no cost of their own to choose them for.
  if (options.hooks.empty()) std::erase_if(specs, is_made_of_hooks);
  std::erase(specs, "allreduce");
  specs.insert(specs.begin(), "allreduce");
  return specs;
}

void check_together(const PlanOptions& options) {
  if (options.device == "cuda" && (options.cpu || options.validate))
    throw ConfigError("--device cuda goes with neither --cpu nor --validate");
  if (!options.simulate && options.hosts.size() > 1)
    throw ConfigError("--hosts takes several numbers with --simulate only");
  if (!options.simulate && options.speeds != "measured")
    throw ConfigError("--speeds goes with --simulate");
  if (options.speeds != "measured" && (options.cpu || options.validate))
    throw ConfigError("--speeds h200 goes with neither --cpu nor --validate");
  for (const int hosts : options.hosts) {
    if (options.simulate && hosts * options.gpus > kMostSimulated)
      throw ConfigError("--simulate plays up to " + std::to_string(kMostSimulated) +
                        " ranks, not " + std::to_string(hosts * options.gpus));
  }
}

Cluster cluster_from(const PlanOptions& options, const Machine& machine,
                     const NetworkCost& network) {
  Cluster cluster = options.speeds == "h200"
                        ? h200_cluster()
                        : cluster_here(machine, network, cores_for(1), options.gpus);
  if (options.speeds == "h200" && options.latency_us >= 0)
    cluster.latency = options.latency_us * 1e-6;
  cluster.ranks_per_host = options.gpus;
  cluster.compute_seconds = options.compute_ms / 1e3;
  cluster.compute_takes_cores = options.cpu || options.speeds == "h200";
  cluster.straggler = options.straggler;
  cluster.jitter = options.jitter / 100;
  return cluster;
}

json simulated(const PlanOptions& options, const std::vector<std::string>& specs) {
  require_all(options);
  Sweep sweep{
      .hosts = options.hosts, .links = links_from(options), .shapes = model_from(options)};
  Machine machine;
  NetworkCost network;
  if (options.speeds == "h200") {
    sweep.hooks = h200_costs(specs);
  } else {
    const Probe probe = measured(options, specs);
    // On GPUs messages cost no cores.
    if (options.device != "cuda") {
      network = probe_network(kProbedHosts, std::min(options.gpus, kProbedRanks),
                              sweep.links.front());
    }
    for (const HookCost& cost : probe.hooks)
      sweep.hooks.push_back(without_messages(cost, network));
    machine = probe.machine;
  }
  sweep.cluster = cluster_from(options, machine, network);
  json document = run_sweep(sweep);
  if (options.speeds == "measured") document["network"] = json_of(network);
  return document;
}

std::vector<ValidationSetting> settings_from(const PlanOptions& options) {
  if (!options.simulate) return {};
  std::vector<ValidationSetting> settings;
  for (const int hosts : options.hosts) {
    for (const double bits : links_from(options))
      settings.push_back({hosts, options.gpus, bits, true});
  }
  return settings;
}

void run_plan(const PlanOptions& options) {
  const auto specs = specs_from(options);
  json document;
  bool agrees = true;
  check_together(options);
  if (options.simulate && !options.validate) {
    document = simulated(options, specs);
  } else if (options.validate) {
    const int64_t bytes = parse_size(options.validate_size, "--validate-size");
    const auto settings = settings_from(options);
    const Probe probe = measured(options, specs);
    document["validation"] = validate(probe, bytes, settings);
    document["probe"] = json_of(probe);
    agrees = document["validation"]["off"] == 0;
  } else {
    require_all(options);
    const Job job = job_from(options);
    const ShapeList shapes = model_from(options);
    const Probe probe = measured(options, specs);
    document = answer(options, job, shapes, probe);
    document["probe"] = json_of(probe);
  }
  write_json(options.json, document);
  if (!agrees) throw Error("predictions and measurements differ by more than 25 %");
}

}  // namespace

namespace {

void add_simulation_options(CLI::App& plan, PlanOptions& options) {
  plan.add_flag("--simulate", options.simulate,
                "play every rank's step, event by event, for up to 1,024 ranks");
  plan.add_option("--speeds", options.speeds,
                  "with --simulate: what hooks cost, measured here or as recorded: h200")
      ->check(CLI::IsMember({"measured", "h200"}))
      ->capture_default_str();
  plan.add_option("--straggler", options.straggler,
                  "with --simulate: one rank computes so many times as long")
      ->check(number_between(1, 1000))
      ->capture_default_str();
  plan.add_option("--jitter", options.jitter,
                  "with --simulate: ranks' computing differs by about so many per cent")
      ->check(number_between(0, 100))
      ->capture_default_str();
}

}  // namespace

void add_plan(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* plan =
      app.add_subcommand("plan", "which hook for which model on which network");
  plan->footer(
      "Examples:\n"
      "  brigade plan --params 124M --hosts 2 --gpus 4 --link 10gbit --compute 180\n"
      "  brigade plan --model model.safetensors --hosts 4 --link 1gbit --compute 350 "
      "--cpu\n"
      "  brigade plan --simulate --speeds h200 --params 124M --compute 150 --gpus 8 \\\n"
      "      --hosts 8,32,128 --link 10gbit,100gbit,400gbit\n"
      "  brigade plan --validate        (root, to shape links: predictions against bench)\n"
      "docs/bench_and_plan.md has the model behind it.");
  plan->add_option("--params", options->params, "parameters of the model: 25M, 1.5B");
  plan->add_option("--model", options->model, "or a safetensors file with its weights");
  plan->add_option("--hosts", options->hosts,
                   "hosts; with --simulate also several numbers: 8,16,32")
      ->delimiter(',')
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  plan->add_option("--gpus,--ranks-per-host", options->gpus,
                   "ranks, each a GPU, on every host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  plan->add_option("--link", options->link,
                   "what a host can send: 100mbit, 1gbit, 25gbit, or loopback; with "
                   "--simulate also several");
  plan->add_option("--latency", options->latency_us,
                   "microseconds of a message between hosts; as over loopback here when "
                   "left out")
      ->check(number_between(0, 1e7));
  plan->add_option("--compute", options->compute_ms,
                   "milliseconds of a step, forward and backward, without communication")
      ->check(number_between(0, 1e9));
  plan->add_flag("--cpu", options->cpu,
                 "ranks compute on the CPU: hooks compete with them for cores");
  add_device_option(*plan, options->device,
                    "where hooks are measured: cpu, or cuda on a machine with a GPU");
  add_hooks_option(*plan, options->hooks);
  add_simulation_options(*plan, *options);
  plan->add_flag("--validate", options->validate,
                 "compare predictions with measurements on loopback, 1gbit and 100mbit; "
                 "with --simulate, on --hosts, --gpus and --link");
  plan->add_option("--validate-size", options->validate_size, "of the gradients for that")
      ->capture_default_str();
  add_json_option(*plan, options->json);
  plan->callback([options] { run_plan(*options); });
}

}  // namespace brigade::tool
