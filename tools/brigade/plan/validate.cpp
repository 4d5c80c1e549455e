#include "plan/validate.h"

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

// Median seconds by hook; noop's last.
std::vector<double> measure(const Probe& probe, int64_t bytes, int ranks,
                            const ShapedLink* link) {
  const Answers answers;
  run_workers(measuring_workers(ranks, "cpu", link), [&](const Worker& worker) {
    Terminal terminal;
    Reduction reduction(worker.group, shapes_of_size(bytes), worker.device);
    const auto take = [&](const std::string& spec) {
      const bool speaks = worker.group.rank() == 0;
      if (speaks) terminal.progress((link ? link->rate() : "loopback") + "  " + spec);
      const ReductionTimes times = reduction.time(spec, 0.6, 3, 40);
      if (speaks) answers.add(quantile(times.seconds, 0.5));
    };
    for (const HookCost& cost : probe.hooks) take(cost.spec);
    take("noop");
  });
  std::vector<double> seconds;
  for (const json& answer : answers.all()) seconds.push_back(answer);
  return seconds;
}

double simulated(const Probe& probe, const HookCost& cost, const ShapeList& shapes,
                 const ValidationSetting& setting, double compute) {
  Cluster cluster = cluster_here(probe.machine, probe.cores, setting.ranks_per_host);
  cluster.hosts = setting.hosts;
  cluster.link_bits = setting.link_bits;
  cluster.shared_by = Sharing::machine;
  cluster.compute_seconds = compute;
  cluster.forward_share = 0;
  // It was measured with all ranks at it.
  cluster.compute_takes_cores = false;
  const auto buckets = buckets_of(shapes, cost, approximation_rank(cost.spec));
  return simulate(cluster, cost, buckets).seconds;
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

}  // namespace

json validate(const Probe& probe, int64_t bytes, std::vector<ValidationSetting> settings) {
  if (settings.empty()) settings = {{2, 1, 0}, {2, 1, 1e9}, {2, 1, 1e8}, {2, 2, 1e9}};
  const ShapeList shapes = shapes_of_size(bytes);
  Terminal terminal;
  json rows = json::array();
  json result = {{"size_bytes", bytes}};
  std::vector<std::vector<std::string>> table{
      {"hook", "link", "predicted ms", "measured ms", "off"}};
  int off = 0;
  const std::string why = ShapedLink::missing();
  for (const ValidationSetting& setting : settings) {
    if (setting.link_bits > 0 && !why.empty()) {
      result["skipped"] = why;
      continue;
    }
    std::unique_ptr<ShapedLink> link;
    if (setting.link_bits > 0)
      link = std::make_unique<ShapedLink>(setting.hosts, setting.link_bits,
                                          setting.ranks_per_host);
    const auto measured =
        measure(probe, bytes, setting.hosts * setting.ranks_per_host, link.get());
    const double compute = measured.back();
    for (size_t index = 0; index < probe.hooks.size(); ++index) {
      const HookCost& cost = probe.hooks[index];
      if (cost.kind.route == Route::none) continue;
      const double predicted = setting.simulate
                                   ? simulated(probe, cost, shapes, setting, compute)
                                   : reckoned(probe, cost, shapes, setting, compute);
      const double share = predicted / measured[index] - 1;
      const bool within = std::abs(share) <= kAgreement;
      off += within ? 0 : 1;
      rows.push_back({{"hosts", setting.hosts},
                      {"gpus", setting.ranks_per_host},
                      {"link_bits", setting.link_bits},
                      {"hook", cost.spec},
                      {"predicted_ms", predicted * 1e3},
                      {"measured_ms", measured[index] * 1e3},
                      {"off", share},
                      {"within", within}});
      const std::string text =
          (share < 0 ? "-" : "+") + decimals(std::abs(share) * 100, 0) + " %";
      table.push_back({cost.spec, title_of(setting), decimals(predicted * 1e3, 2),
                       decimals(measured[index] * 1e3, 2),
                       within ? text : terminal.paint(Paint::red, text)});
    }
  }
  terminal.line("gradients of " + size_text(static_cast<double>(bytes)) + ":");
  for (const std::string& line : table_lines(table)) terminal.line(line);
  if (!why.empty()) terminal.line("shaped links: skipped: " + why);
  terminal.line(std::to_string(rows.size() - static_cast<size_t>(off)) + " of " +
                std::to_string(rows.size()) + " within 25 %");
  result["rows"] = rows;
  result["off"] = off;
  return result;
}

}  // namespace brigade::tool
