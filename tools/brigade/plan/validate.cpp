#include "plan/validate.h"

#include <cmath>
#include <memory>

#include "common/answers.h"
#include "common/options/number_text.h"
#include "common/shaped_link.h"
#include "common/terminal.h"
#include "common/workers.h"
#include "plan/advice.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

constexpr double kAgreement = 0.25;

// Median seconds by hook; noop's last.
std::vector<double> measure(const Probe& probe, int64_t bytes, const ShapedLink* link) {
  const Answers answers;
  run_workers(measuring_workers(2, "cpu", link), [&](const Worker& worker) {
    const auto& [group, device] = worker;
    Terminal terminal;
    Reduction reduction(group, shapes_of_size(bytes), device);
    const auto take = [&](const std::string& spec) {
      const bool speaks = group.rank() == 0;
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

Job job_for(double bits, double compute) {
  return {.hosts = 2,
          .ranks_per_host = 1,
          .link_bits = bits,
          .compute_seconds = compute,
          .forward_share = 0,
          .compute_on_cpu = true,
          .cores_per_rank = cores_for(2)};
}

}  // namespace

json validate(const Probe& probe, int64_t bytes) {
  const ShapeList shapes = shapes_of_size(bytes);
  Terminal terminal;
  json rows = json::array();
  json result = {{"size_bytes", bytes}};
  std::vector<std::vector<std::string>> table{
      {"hook", "link", "predicted ms", "measured ms", "off"}};
  int off = 0;
  const std::string why = ShapedLink::missing();
  for (const double bits : {0.0, 1e9, 1e8}) {
    if (bits > 0 && !why.empty()) {
      result["skipped"] = why;
      continue;
    }
    std::unique_ptr<ShapedLink> link;
    if (bits > 0) link = std::make_unique<ShapedLink>(2, bits);
    const std::string name = link ? link->rate() : "loopback";
    const auto measured = measure(probe, bytes, link.get());
    for (size_t index = 0; index < probe.hooks.size(); ++index) {
      const HookCost& cost = probe.hooks[index];
      if (cost.kind.route == Route::none) continue;
      const Candidate found =
          candidate_of(job_for(bits, measured.back()), probe.machine, cost, shapes);
      const double predicted = found.likely.step_seconds;
      const double share = predicted / measured[index] - 1;
      const bool within = std::abs(share) <= kAgreement;
      off += within ? 0 : 1;
      rows.push_back({{"link_bits", bits},
                      {"hook", cost.spec},
                      {"predicted_ms", predicted * 1e3},
                      {"measured_ms", measured[index] * 1e3},
                      {"off", share},
                      {"within", within}});
      const std::string text =
          (share < 0 ? "-" : "+") + decimals(std::abs(share) * 100, 0) + " %";
      table.push_back({cost.spec, name, decimals(predicted * 1e3, 2),
                       decimals(measured[index] * 1e3, 2),
                       within ? text : terminal.paint(Paint::red, text)});
    }
  }
  terminal.line("gradients of " + size_text(static_cast<double>(bytes)) + ", 2 ranks:");
  for (const std::string& line : table_lines(table)) terminal.line(line);
  if (!why.empty()) terminal.line("shaped links: skipped: " + why);
  terminal.line(std::to_string(rows.size() - static_cast<size_t>(off)) + " of " +
                std::to_string(rows.size()) + " within 25 %");
  result["rows"] = rows;
  result["off"] = off;
  return result;
}

}  // namespace brigade::tool
