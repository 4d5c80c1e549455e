#include "plan/validate.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/answers.h"
#include "common/options/number_text.h"
#include "common/shaped_link.h"
#include "common/terminal.h"
#include "common/workers.h"
#include "plan/advice.h"
#include "plan/simulation/simulation.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

constexpr double kAgreement = 0.25;
constexpr int kLeastSteps = 15;

// Medians of a hook's steps: of the backward pass, and with what comes before it.
struct Measured {
  double seconds, whole_seconds;
  double cpu_seconds, whole_cpu_seconds;  // what one rank computed
};

// By hook; noop's last.
std::vector<Measured> measure(const Probe& probe, int64_t bytes, int ranks,
                              const ShapedLink* link) {
  const Answers answers;
  run_workers(measuring_workers(ranks, "cpu", link), [&](const Worker& worker) {
    Terminal terminal;
    Reduction reduction(worker.group, shapes_of_size(bytes), worker.device);
    const auto take = [&](const std::string& spec) {
      const bool speaks = worker.group.rank() == 0;
      if (speaks) terminal.progress((link ? link->rate() : "loopback") + "  " + spec);
      const ReductionTimes times = reduction.time(spec, 1, kLeastSteps, 60);
      const auto median = [](const auto& values) { return quantile(values, 0.5); };
      if (speaks)
        answers.add({median(times.seconds), median(times.whole_seconds),
                     median(times.cpu_seconds), median(times.whole_cpu_seconds)});
    };
    for (const HookCost& cost : probe.hooks) take(cost.spec);
    take("noop");
  });
  std::vector<Measured> found;
  for (const json& answer : answers.all())
    found.push_back({answer[0], answer[1], answer[2], answer[3]});
  return found;
}

// `noop`: what a rank computes without a hook.
SimulatedStep simulated(const Probe& probe, const NetworkCost& network,
                        const HookCost& cost, const ShapeList& shapes,
                        const ValidationSetting& setting, const Measured& noop) {
  Cluster cluster =
      cluster_here(probe.machine, network, probe.cores, setting.ranks_per_host);
  cluster.hosts = setting.hosts;
  cluster.link_bits = setting.link_bits;
  cluster.link_burst = setting.link_bits > 0 ? ShapedLink::burst(setting.link_bits) : 0;
  cluster.shared_by = Sharing::machine;
  cluster.compute_seconds = noop.whole_cpu_seconds;
  cluster.forward_share = 1 - noop.cpu_seconds / std::max(noop.whole_cpu_seconds, 1e-9);
  const auto buckets = buckets_of(shapes, cost, approximation_rank(cost.spec));
  return simulate(cluster, without_messages(cost, network), buckets);
}

double reckoned(const Probe& probe, HookCost cost, const ShapeList& shapes,
                const ValidationSetting& setting, double compute) {
  const Job job{.hosts = setting.hosts,
                .ranks_per_host = setting.ranks_per_host,
                .link_bits = setting.link_bits,
                .compute_seconds = compute,
                .forward_share = 0,
                .compute_on_cpu = true,
                .cores_per_rank = std::max(
                    1, probe.cores / std::max(1, setting.hosts * setting.ranks_per_host))};
  // Where there are more ranks than cores, a rank has only a share of one.
  const double waits = std::max(1.0, double(job.ranks()) / probe.cores);
  Machine machine = probe.machine;
  machine.transport_seconds_per_byte *= waits;
  machine.latency *= waits;
  cost.step_seconds *= waits;
  cost.seconds_per_value *= waits;
  return candidate_of(job, machine, cost, shapes).likely.step_seconds;
}

std::string title_of(const ValidationSetting& setting) {
  std::string rate = setting.link_bits > 0 ? rate_text(setting.link_bits) : "loopback";
  if (setting.hosts == 2 && setting.ranks_per_host == 1) return rate;
  return std::to_string(setting.hosts) + " x " + std::to_string(setting.ranks_per_host) +
         ", " + rate;
}

// Whether a row's prediction is near what was measured.
bool is_within(const json& row) { return std::abs(row["off"].get<double>()) <= kAgreement; }

json row_of(const ValidationSetting& setting, const HookCost& cost, double predicted,
            double measured) {
  json row = {{"hosts", setting.hosts},          {"gpus", setting.ranks_per_host},
              {"link_bits", setting.link_bits},  {"hook", cost.spec},
              {"predicted_ms", predicted * 1e3}, {"measured_ms", measured * 1e3},
              {"off", predicted / measured - 1}};
  row["within"] = is_within(row);
  return row;
}

// Adds the setting's rows, and with a simulation what they have in common.
void compare(const Probe& probe, int64_t bytes, const ValidationSetting& setting,
             json& result) {
  const ShapeList shapes = shapes_of_size(bytes);
  const int ranks = setting.hosts * setting.ranks_per_host;
  std::unique_ptr<ShapedLink> link;
  if (setting.link_bits > 0)
    link = std::make_unique<ShapedLink>(setting.hosts, setting.link_bits,
                                        setting.ranks_per_host);
  const auto measured = measure(probe, bytes, ranks, link.get());
  const Measured& noop = measured.back();
  NetworkCost network;
  if (setting.simulate) {
    network = probe_network(setting.hosts, setting.ranks_per_host, setting.link_bits);
    json shared = json_of(network);
    shared["noop_cpu_ms"] = noop.whole_cpu_seconds * 1e3;
    shared["noop_backward_cpu_ms"] = noop.cpu_seconds * 1e3;
    result["shared"].push_back(shared);
  }
  for (size_t index = 0; index < probe.hooks.size(); ++index) {
    const HookCost& cost = probe.hooks[index];
    const Measured& found = measured[index];
    if (cost.kind.route == Route::none) continue;
    if (!setting.simulate) {
      result["rows"].push_back(row_of(setting, cost,
                                      reckoned(probe, cost, shapes, setting, noop.seconds),
                                      found.seconds));
      continue;
    }
    // All ranks' whole steps are played: they begin when the last one ends.
    const SimulatedStep played = simulated(probe, network, cost, shapes, setting, noop);
    json row = row_of(setting, cost, played.seconds, found.whole_seconds);
    row["predicted_cpu_ms"] = played.cpu_seconds * 1e3;
    row["measured_cpu_ms"] = found.whole_cpu_seconds * 1e3;
    result["rows"].push_back(row);
  }
}

std::vector<std::string> line_of(const json& row, const Terminal& terminal) {
  const double share = row["off"];
  const std::string text =
      (share < 0 ? "-" : "+") + decimals(std::abs(share) * 100, 0) + " %";
  return {row["hook"], title_of({row["hosts"], row["gpus"], row["link_bits"]}),
          decimals(row["predicted_ms"], 2), decimals(row["measured_ms"], 2),
          is_within(row) ? text : terminal.paint(Paint::red, text)};
}

}  // namespace

json validate(const Probe& probe, int64_t bytes, std::vector<ValidationSetting> settings) {
  if (settings.empty()) settings = {{2, 1, 0}, {2, 1, 1e9}, {2, 1, 1e8}, {2, 2, 1e9}};
  json result = {{"size_bytes", bytes}, {"rows", json::array()}};
  const std::string why = ShapedLink::missing();
  for (const ValidationSetting& setting : settings) {
    if (setting.link_bits > 0 && !why.empty()) {
      result["skipped"] = why;
    } else {
      compare(probe, bytes, setting, result);
    }
  }
  Terminal terminal;
  const json& rows = result["rows"];
  std::vector<std::vector<std::string>> table{
      {"hook", "link", "predicted ms", "measured ms", "off"}};
  for (const json& row : rows) table.push_back(line_of(row, terminal));
  terminal.line("gradients of " + size_text(static_cast<double>(bytes)) + ":");
  for (const std::string& line : table_lines(table)) terminal.line(line);
  if (!why.empty()) terminal.line("shaped links: skipped: " + why);
  const auto within = std::ranges::count_if(rows, is_within);
  terminal.line(std::to_string(within) + " of " + std::to_string(rows.size()) +
                " within 25 %");
  result["off"] = static_cast<int64_t>(rows.size()) - within;
  return result;
}

}  // namespace brigade::tool
