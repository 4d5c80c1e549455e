// brigade selftest: runs every hook in real workers against the exact mean, and prints
// which kept their promise.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/exception_text.h"
#include "brigade/launch.h"
#include "common/command.h"
#include "common/json.h"
#include "common/shared_memory.h"
#include "common/terminal.h"
#include "common/workers.h"
#include "selftest/hook_check.h"

namespace brigade::tool {
namespace {

using Json = nlohmann::ordered_json;

struct SelftestOptions {
  WorkerOptions workers;
  std::string json;
};

// Rank 0's report to the parent, which goes on when workers die.
struct Report {
  std::atomic<int> current{0};  // the check under way
  char backend[16] = {};
  char results[1 << 18] = {};  // a JSON array of finished checks only
};

Json to_json(const HookCheckResult& result) {
  Json json = {{"hook", result.name},       {"passed", result.passed()},
               {"error", result.error},     {"tolerance", result.tolerance},
               {"buckets", result.buckets}, {"steps", result.steps},
               {"sent", result.sent},       {"seconds", result.seconds}};
  if (!result.passed()) json["failure"] = result.failure;
  return json;
}

void print_row(Terminal& terminal, const HookCheckResult& result) {
  const bool good = result.passed();
  char numbers[80];
  if (result.tolerance < 0) {
    std::snprintf(numbers, sizeof numbers, "%9s %9s", "-", "own");
  } else {
    std::snprintf(numbers, sizeof numbers, "%9.1e %9.1e", result.error, result.tolerance);
  }
  char rest[80];
  std::snprintf(rest, sizeof rest, " %7.2f %7.0f ms", result.sent, result.seconds * 1000);
  terminal.line("  " +
                terminal.paint(good ? Paint::green : Paint::red, good ? "PASS" : "FAIL") +
                "  " + padded(result.name, 34) + numbers + rest);
  if (!good) terminal.line("        " + result.failure);
}

void print_heading(const Worker& worker, size_t checks) {
  std::printf("%d worker%s over %s on %s, %zu checks of several buckets each\n",
              worker.group.size(), worker.group.size() > 1 ? "s" : "",
              worker.group.backend().c_str(), worker.device.is_cuda() ? "cuda" : "cpu",
              checks);
  std::printf("        %-34s%9s %9s %7s %10s\n", "hook", "error", "allowed", "sent",
              "time");
}

void work(const Worker& worker, const std::vector<HookCheck>& checks, Report& report) {
  const bool speaks = worker.group.rank() == 0;
  if (speaks) {
    std::strncpy(report.backend, worker.group.backend().c_str(), sizeof report.backend - 1);
    print_heading(worker, checks.size());
  }
  Terminal terminal;
  Json results = Json::array();
  for (size_t i = 0; i < checks.size(); ++i) {
    if (speaks) {
      report.current = static_cast<int>(i);
      terminal.progress("  ....  " + checks[i].name);
    }
    const HookCheckResult result = check_hook(worker, checks[i]);
    if (!speaks) continue;
    print_row(terminal, result);
    results.push_back(to_json(result));
    const std::string text = results.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() < sizeof report.results)
      std::memcpy(report.results, text.c_str(), text.size() + 1);
  }
}

// The workers' results. If a worker died, the check it died in has failed.
Json run_checks(const SelftestOptions& options, const SharedMemory<Report>& report) {
  const std::vector<HookCheck> checks = hook_checks();
  std::string death;
  WorkerOptions workers = options.workers;
  // Finds a hook that hangs within seconds, not minutes.
  if (!std::getenv("BRIGADE_TIMEOUT")) workers.environment["BRIGADE_TIMEOUT"] = "10";
  try {
    run_workers(workers, [&](const Worker& worker) { work(worker, checks, *report); });
  } catch (const ConfigError&) {
    throw;
  } catch (const LaunchError& error) {
    if (!error.failure()) throw;  // Ctrl-C
    death = error.what();
  } catch (const std::exception& error) {
    death = base::text_of(error);
  }
  Json results = Json::parse(report->results, nullptr, /*allow_exceptions=*/false);
  if (!results.is_array()) results = Json::array();
  if (!death.empty()) {
    const HookCheck& check = checks[static_cast<size_t>(report->current)];
    const HookCheckResult result{
        .name = check.name, .failure = death, .tolerance = check.tolerance};
    Terminal terminal;
    terminal.progress("");  // the dead worker's line
    print_row(terminal, result);
    results.push_back(to_json(result));
  }
  return results;
}

void selftest(const SelftestOptions& options, int& exit_code) {
  const auto begin = std::chrono::steady_clock::now();
  const SharedMemory<Report> report;
  Json results = run_checks(options, report);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::string failed;
  size_t failures = 0;
  for (const Json& result : results) {
    if (result["passed"].get<bool>()) continue;
    failed += (failures++ ? ", " : "") + result["hook"].get<std::string>();
  }
  if (failures == 0) {
    std::printf("all %zu checks passed in %.1f s\n", results.size(), seconds);
  } else {
    std::printf("%zu of %zu checks FAILED in %.1f s: %s\n", failures, results.size(),
                seconds, failed.c_str());
    exit_code = 1;
  }
  write_json(options.json, {{"passed", failures == 0},
                            {"workers", options.workers.workers},
                            {"backend", report->backend},
                            {"device", options.workers.device},
                            {"seconds", seconds},
                            {"checks", std::move(results)}});
}

}  // namespace

void add_selftest(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SelftestOptions>();
  CLI::App* command = app.add_subcommand(
      "selftest", "run every hook in real workers against an exact reference");
  command->footer(
      "Example:\n  brigade selftest -n 4 --json selftest.json\n\n"
      "error: of the mean of one step, relative to what went in; sent: bytes on the wire "
      "for "
      "each byte of\ngradients. Exits with 1 when a check fails.");
  add_worker_options(*command, options->workers);
  add_json_option(*command, options->json);
  command->callback([options, &exit_code] { selftest(*options, exit_code); });
}

}  // namespace brigade::tool
