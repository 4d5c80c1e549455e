#include "plan/answer.h"

#include <cmath>

#include "common/hook_choice.h"
#include "common/options/number_text.h"
#include "common/terminal.h"
#include "plan/advice.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  return decimals(value, value < 10 ? 2 : 1);
}

void print_table(Terminal& terminal, const std::vector<Candidate>& candidates,
                 size_t choice) {
  std::vector<std::vector<std::string>> rows{{"hook", "step ms", "from", "to", "exposed ms",
                                              "link ms", "CPU ms", "MB a rank",
                                              "speed-up"}};
  const double baseline = candidates[0].likely.step_seconds;
  for (size_t index = 0; index < candidates.size(); ++index) {
    const Candidate& c = candidates[index];
    rows.push_back({(index == choice ? "> " : "  ") + c.spec, ms(c.likely.step_seconds),
                    ms(c.fast.step_seconds), ms(c.slow.step_seconds),
                    ms(c.likely.exposed_seconds), ms(c.likely.link_seconds),
                    ms(c.likely.cpu_seconds), decimals(c.likely.wire_bytes / 1e6, 2),
                    decimals(baseline / std::max(c.likely.step_seconds, 1e-12), 2) + "x"});
  }
  for (const std::string& line : table_lines(rows)) terminal.line(line);
}

// What to write into a program: without the start=0 under which hooks are measured, unless
// the user wrote it.
std::string recommended(const PlanOptions& options, const std::string& spec) {
  const size_t start = spec.rfind("start=0");
  if (start == std::string::npos || options.hooks.find("start=0") != std::string::npos)
    return spec;
  return spec.substr(0, start - 1);
}

std::string verdict(const std::string& spec, const Advice& advice) {
  if (advice.choice == 0) {
    return "Use allreduce: no hook saves 10 % of a step or more (" +
           std::string(text_of(advice.sureness)) + ").";
  }
  return "Use " + spec + ": " + decimals(100 * advice.gain, 0) +
         " % of a step saved against allreduce (" + std::string(text_of(advice.sureness)) +
         ").";
}

json json_of(const Prediction& p) {
  return {{"step_ms", p.step_seconds * 1e3},
          {"exposed_ms", p.exposed_seconds * 1e3},
          {"link_ms", p.link_seconds * 1e3},
          {"cpu_ms", p.cpu_seconds * 1e3},
          {"wire_bytes", std::llround(p.wire_bytes)}};
}

json json_of(const Candidate& c) {
  json row = json_of(c.likely);
  row["hook"] = c.spec;
  row["low_ms"] = c.fast.step_seconds * 1e3;
  row["high_ms"] = c.slow.step_seconds * 1e3;
  return row;
}

}  // namespace

json answer(const PlanOptions& options, const Job& job, const ShapeList& shapes,
            const Probe& probe) {
  std::vector<Candidate> candidates;
  for (const HookCost& cost : probe.hooks)
    candidates.push_back(candidate_of(job, probe.machine, cost, shapes));
  const Advice advice = advise(candidates);
  const Doubt doubt = doubt_of(job, probe.hooks[advice.choice]);
  const double below = pays_below(job, probe.machine, probe.hooks, shapes);

  Terminal terminal;
  int64_t params = 0;
  for (const auto& shape : shapes) params += values_of({shape});
  terminal.line(decimals(static_cast<double>(params) / 1e6, 1) + " M parameters on " +
                std::to_string(job.ranks()) + " ranks, " + std::to_string(job.hosts) +
                " hosts of " + std::to_string(job.ranks_per_host) + ", " +
                (job.link_bits > 0 ? rate_text(job.link_bits) : "loopback") + ", " +
                ms(job.compute_seconds) + " ms of compute a step");
  terminal.line();
  print_table(terminal, candidates, advice.choice);
  terminal.line();
  const std::string spec = recommended(options, candidates[advice.choice].spec);
  terminal.line(terminal.paint(Paint::bold, verdict(spec, advice)));
  if (const int64_t steps = steps_before_compression(spec); steps > 0) {
    terminal.line("Its first " + std::to_string(steps) +
                  " steps average exactly, which helps it later (start=" +
                  std::to_string(steps) + "); predicted is a step after them.");
  }
  if (below > 0) {
    terminal.line("For this model and compute something saves 10 % on links slower than " +
                  rate_text(below) + ".");
  } else if (job.hosts > 1) {
    terminal.line("For this model and compute nothing saves 10 % on any link.");
  }
  terminal.line("Predictions may be off by " + decimals(100 * doubt.share, 0) +
                " % of what communication costs:");
  for (const std::string& reason : doubt.reasons) terminal.line("  - " + reason);

  json rows = json::array();
  for (const Candidate& candidate : candidates) rows.push_back(json_of(candidate));
  return {{"job",
           {{"params", params},
            {"hosts", job.hosts},
            {"gpus", job.ranks_per_host},
            {"link_bits", job.link_bits},
            {"compute_ms", options.compute_ms},
            {"compute_on_cpu", job.compute_on_cpu}}},
          {"hooks", rows},
          {"choice",
           {{"hook", spec},
            {"gain", advice.gain},
            {"sureness", text_of(advice.sureness)},
            {"doubt", doubt.share},
            {"reasons", doubt.reasons},
            {"pays_below_bits", below}}}};
}

}  // namespace brigade::tool
