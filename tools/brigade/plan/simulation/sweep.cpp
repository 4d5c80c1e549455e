#include "plan/simulation/sweep.h"

#include <cmath>

#include "common/options/number_text.h"
#include "common/options/quantities.h"
#include "common/terminal.h"
#include "plan/simulation/simulation.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

struct Setting {
  Cluster cluster;
  std::vector<SimulatedStep> steps;  // by hook
  Advice advice;
};

Setting play(const Sweep& sweep, int hosts, double bits) {
  Setting setting{.cluster = sweep.cluster};
  setting.cluster.hosts = hosts;
  setting.cluster.link_bits = bits;
  std::vector<Candidate> candidates;
  for (const HookCost& cost : sweep.hooks) {
    const auto buckets = buckets_of(sweep.shapes, cost, approximation_rank(cost.spec));
    setting.steps.push_back(simulate(setting.cluster, cost, buckets));
    candidates.push_back({.spec = cost.spec, .tolerance = cost.tolerance});
    candidates.back().likely.step_seconds = setting.steps.back().seconds;
  }
  setting.advice = advise(candidates);
  return setting;
}

// The fastest link on which something is advised before allreduce; 0: none.
double pays_below(const Sweep& sweep, int hosts) {
  const auto pays = [&](double bits) {
    return play(sweep, hosts, bits).advice.choice != 0;
  };
  double low = 1e8, high = 1.6e12;
  if (hosts < 2 || !pays(low)) return 0;
  if (pays(high)) return high;
  for (int halving = 0; halving < 8; ++halving) {
    const double middle = std::sqrt(low * high);
    (pays(middle) ? low : high) = middle;
  }
  return low;
}

std::string milliseconds(double seconds) {
  return decimals(seconds * 1e3, seconds < 0.01 ? 2 : 1);
}

double share_of_exact(const Setting& setting, size_t hook) {
  return setting.steps[hook].seconds / std::max(setting.steps[0].seconds, 1e-12);
}

void print_hooks(Terminal& terminal, const Sweep& sweep, const Setting& setting) {
  std::vector<std::vector<std::string>> rows{
      {"hook", "step ms", "exposed ms", "link ms", "MB a rank", "MB a host", "speed-up"}};
  for (size_t hook = 0; hook < sweep.hooks.size(); ++hook) {
    const SimulatedStep& step = setting.steps[hook];
    rows.push_back({(hook == setting.advice.choice ? "> " : "  ") + sweep.hooks[hook].spec,
                    milliseconds(step.seconds), milliseconds(step.exposed_seconds),
                    milliseconds(step.link_seconds), decimals(step.wire_bytes / 1e6, 1),
                    decimals(step.host_bytes / 1e6, 1),
                    decimals(1 / share_of_exact(setting, hook), 2) + "x"});
  }
  for (const std::string& line : table_lines(rows)) terminal.line(line);
}

std::string cell_of(const Sweep& sweep, const Setting& setting) {
  const size_t choice = setting.advice.choice;
  std::string exact = milliseconds(setting.steps[0].seconds);
  if (choice == 0) return exact;
  return exact + ", " + sweep.hooks[choice].spec + " " +
         decimals(share_of_exact(setting, choice), 2);
}

void print_grid(Terminal& terminal, const Sweep& sweep, const std::vector<Setting>& all,
                const std::vector<double>& below) {
  terminal.line(
      "ms of a step with allreduce, and what to use instead with its share of that time, "
      "where it saves 10 %:");
  std::vector<std::vector<std::string>> rows{{"hosts", "ranks"}};
  for (const double bits : sweep.links) rows[0].push_back(rate_text(bits));
  rows[0].push_back("pays below");
  for (size_t line = 0; line < sweep.hosts.size(); ++line) {
    const int hosts = sweep.hosts[line];
    rows.push_back(
        {std::to_string(hosts), std::to_string(hosts * sweep.cluster.ranks_per_host)});
    for (size_t column = 0; column < sweep.links.size(); ++column)
      rows.back().push_back(cell_of(sweep, all[line * sweep.links.size() + column]));
    rows.back().push_back(below[line] > 0 ? rate_text(below[line]) : "never");
  }
  for (const std::string& line : table_lines(rows)) terminal.line(line);
}

json json_of(const Sweep& sweep, const Setting& setting) {
  json hooks = json::array();
  for (size_t hook = 0; hook < sweep.hooks.size(); ++hook) {
    const SimulatedStep& step = setting.steps[hook];
    hooks.push_back({{"hook", sweep.hooks[hook].spec},
                     {"step_ms", step.seconds * 1e3},
                     {"exposed_ms", step.exposed_seconds * 1e3},
                     {"link_ms", step.link_seconds * 1e3},
                     {"wire_bytes", std::llround(step.wire_bytes)},
                     {"host_bytes", std::llround(step.host_bytes)},
                     {"events", step.events}});
  }
  return {{"hosts", setting.cluster.hosts},
          {"gpus", setting.cluster.ranks_per_host},
          {"link_bits", setting.cluster.link_bits},
          {"hooks", hooks},
          {"choice", sweep.hooks[setting.advice.choice].spec},
          {"gain", setting.advice.gain}};
}

// Of pairs of a setting and a hook that is a mean: how many there are, and how many save
// 10 % of allreduce's time.
std::pair<int, int> count_pairs(const Sweep& sweep, const std::vector<Setting>& all) {
  int pairs = 0, pay = 0;
  for (const Setting& setting : all) {
    for (size_t hook = 1; hook < sweep.hooks.size(); ++hook) {
      if (sweep.hooks[hook].tolerance < 0) continue;
      ++pairs;
      pay += share_of_exact(setting, hook) <= 1 - kWorthwhile ? 1 : 0;
    }
  }
  return {pairs, pay};
}

}  // namespace

json run_sweep(const Sweep& sweep) {
  Terminal terminal;
  std::vector<Setting> all;
  std::vector<double> below;
  json settings = json::array(), links = json::object();
  for (const int hosts : sweep.hosts) {
    for (const double bits : sweep.links) {
      terminal.progress(std::to_string(hosts) + " hosts, " + rate_text(bits));
      all.push_back(play(sweep, hosts, bits));
      settings.push_back(json_of(sweep, all.back()));
    }
    below.push_back(pays_below(sweep, hosts));
    links[std::to_string(hosts)] = below.back();
  }
  if (all.size() == 1) {
    print_hooks(terminal, sweep, all[0]);
    terminal.line(below[0] > 0
                      ? "Something saves 10 % on links slower than " + rate_text(below[0])
                      : "Nothing saves 10 % on any link");
  } else {
    print_grid(terminal, sweep, all, below);
  }
  const auto [pairs, pay] = count_pairs(sweep, all);
  terminal.line("Of " + std::to_string(pairs) + " pairs of a setting and a hook " +
                std::to_string(pay) + " save 10 %.");
  return {{"settings", settings},
          {"pays_below_bits", links},
          {"pairs", pairs},
          {"pairs_that_pay", pay}};
}

}  // namespace brigade::tool
