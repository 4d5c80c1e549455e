// brigade bench: how long each hook takes to reduce gradients, in real processes, with the
// result verified in the same run.
#include <ATen/ATen.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "bench/link_speeds.h"
#include "bench/measurement.h"
#include "bench/pytorch.h"
#include "common/command.h"
#include "common/hook_choice.h"
#include "common/json.h"
#include "common/options.h"
#include "common/shaped_link.h"
#include "common/terminal.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

struct BenchOptions {
  std::string hooks;
  std::string sizes = "1M:64M:4";
  int ranks = 2;
  int hosts = 0;  // 0: on a link, every rank is a host
  std::string link;
  std::string device = "cpu";
  double seconds = 0.5;
  int steps = 0;  // 0: limited by time instead
  bool against_pytorch = false;
  std::string json;

  std::vector<std::string> specs;
  std::vector<int64_t> bytes;

  int ranks_per_host() const { return hosts > 0 ? ranks : 1; }
  int all_ranks() const { return hosts > 0 ? hosts * ranks : ranks; }
};

// Low-rank hooks reproduce gradients of low rank up to the rounding of float32 products.
constexpr double kLowRankTolerance = 1e-3;

bool verified(const ReductionCheck& check, double tolerance) {
  return check.identical && check.error <= tolerance * (1 + 1e-6) &&
         check.low_rank_error <= kLowRankTolerance;
}

// `host_bytes`: the bytes that a host sends to the others in a step.
json row_of(const std::string& spec, int64_t bytes, int ranks, const ReductionTimes& times,
            const ReductionCheck& check, double host_bytes) {
  const double p50 = quantile(times.seconds, 0.5);
  const double algorithm = static_cast<double>(bytes) / p50 / 1e9;
  const double tolerance = tolerance_of(spec);
  json row = {{"size_bytes", bytes},
              {"hook", spec},
              {"steps", times.seconds.size()},
              {"buckets", times.buckets},
              {"p50_ms", p50 * 1e3},
              {"p99_ms", quantile(times.seconds, 0.99) * 1e3},
              {"min_ms", quantile(times.seconds, 0) * 1e3},
              {"cpu_ms", quantile(times.cpu_seconds, 0.5) * 1e3},
              {"algbw_gb_s", algorithm},
              {"busbw_gb_s", algorithm * 2 * (ranks - 1) / ranks},
              {"shape", times.shape}};
  if (spec != kNoHook) {
    row["wire_bytes"] = times.traffic.bytes_sent;
    row["host_bytes"] = host_bytes;
    row["collectives"] = times.traffic.collectives;
  }
  if (tolerance < 0) return row;  // not a mean
  row["error"] = check.error;
  row["tolerance"] = tolerance;
  row["replicas_identical"] = check.identical;
  row["verified"] = verified(check, tolerance);
  return row;
}

std::string text_of(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

constexpr int kHookColumns = 34;

std::string head() {
  return padded("size", 9) + padded("hook", kHookColumns) + padded("p50 ms", -9) +
         padded("p99 ms", -10) + padded("algbw", -9) + padded("busbw", -9) +
         padded("wire MB", -10) + padded("error", -10) + "  verified";
}

std::string line_of(const json& row, const Terminal& terminal) {
  std::string line =
      padded(size_text(row["size_bytes"]), 9) +
      padded(row["hook"].get<std::string>(), kHookColumns) +
      padded(decimals(row["p50_ms"], 2), -9) + padded(decimals(row["p99_ms"], 2), -10) +
      padded(decimals(row["algbw_gb_s"], 3), -9) +
      padded(decimals(row["busbw_gb_s"], 3), -9) +
      padded(row.contains("wire_bytes") ? decimals(row["wire_bytes"].get<double>() / 1e6, 3)
                                        : "-",
             -10);
  if (!row.contains("verified")) return line + padded("-", -10) + "  not a mean";
  line += padded(text_of("%.1e", row["error"]), -10) + "  ";
  return line + (row["verified"] ? terminal.paint(Paint::green, "ok")
                                 : terminal.paint(Paint::red, "WRONG"));
}

double mean_over_hosts(const Worker& worker, double mine) {
  const at::Tensor sum = at::full({1}, mine, at::kDouble).to(worker.device);
  worker.group.all_reduce(sum);
  return sum.item<double>() / worker.group.layout().hosts();
}

// Runs in a worker, for all sizes and hooks.
void measure(const Worker& worker, const BenchOptions& options, const Answers& answers) {
  Terminal terminal;
  const bool speaks = worker.group.rank() == 0;
  for (const int64_t bytes : options.bytes) {
    Measurement reduction(worker.group, shapes_of_size(bytes), worker.device);
    for (const std::string& spec : options.specs) {
      if (speaks) terminal.progress(size_text(static_cast<double>(bytes)) + "  " + spec);
      const ReductionCheck check = reduction.check(spec);
      const int least = options.steps > 0 ? options.steps : 5;
      const int most = options.steps > 0 ? options.steps : 1000;
      const ReductionTimes times = reduction.time(spec, options.seconds, least, most);
      const double host_bytes =
          mean_over_hosts(worker, static_cast<double>(times.traffic.bytes_to_other_hosts));
      if (!speaks) continue;
      const json row = row_of(spec, bytes, worker.group.size(), times, check, host_bytes);
      answers.add(row);
      terminal.line(line_of(row, terminal));
    }
  }
}

void check_memory(const BenchOptions& options) {
  // Counts parameters, gradients, buckets, the hook's state and the exact mean in float64.
  const int64_t largest = *std::max_element(options.bytes.begin(), options.bytes.end());
  const double needed = 10.0 * static_cast<double>(largest) * options.all_ranks();
  const double there = static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) *
                       static_cast<double>(sysconf(_SC_PAGESIZE));
  const double all = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<double>(sysconf(_SC_PAGESIZE));
  // Memory that is not free may be reclaimable cache, so 90 % of all memory is accepted.
  if (needed > std::max(there, 0.9 * all)) {
    throw ConfigError("--sizes has " + size_text(static_cast<double>(largest)) + ": " +
                      std::to_string(options.all_ranks()) + " ranks need about " +
                      size_text(needed) + " of memory for it, this machine has " +
                      size_text(all) + "; take a smaller size or fewer ranks");
  }
}

json set_up(const BenchOptions& options, const std::string& link) {
  return {{"ranks", options.all_ranks()},
          {"ranks_per_host", options.ranks_per_host()},
          {"link", link},
          {"device", options.device},
          {"hooks", options.specs},
          {"sizes", options.bytes},
          {"seconds_per_row", options.seconds}};
}

// Throws Error that names the rows that are wrong.
void judge(const json& rows) {
  std::string wrong;
  for (const json& row : rows) {
    if (!row.value("verified", true)) {
      wrong += (wrong.empty() ? "" : ", ") + row["hook"].get<std::string>() + " at " +
               size_text(row["size_bytes"]);
    }
  }
  if (!wrong.empty())
    throw Error("wrong results: " + wrong + " (error above tolerance, or replicas differ)");
}

void run_bench(BenchOptions options) {
  if (options.all_ranks() < 2)
    throw ConfigError("-n " + std::to_string(options.ranks) +
                      ": one rank has nobody to send to; take 2 or more");
  options.specs = choose_hooks(options.hooks, /*may_be_none=*/true);
  options.bytes = parse_sizes(options.sizes, "--sizes");
  check_memory(options);
  const auto link = link_from(options.link, options.all_ranks() / options.ranks_per_host(),
                              options.ranks_per_host());
  if (options.hosts > 0 && !link)
    throw ConfigError("--hosts makes a network: take --link RATE with it");
  if (link && options.device == "cuda")
    throw ConfigError("--link shapes Gloo's traffic: take --device cpu with it");
  const std::string over = link ? link->rate() : "loopback";
  const WorkerOptions workers =
      measuring_workers(options.all_ranks(), options.device, link.get());
  Terminal terminal;
  const std::string where =
      options.hosts > 0 ? " on " + std::to_string(options.hosts) + " hosts" : "";
  terminal.line(std::to_string(options.all_ranks()) + " ranks" + where + " over " + over +
                ", times of rank 0; algbw and busbw in GB/s");
  terminal.line(terminal.paint(Paint::bold, head()));
  const Answers answers;
  run_workers(workers, [&](const Worker& worker) { measure(worker, options, answers); });
  json document = set_up(options, over);
  document["rows"] = answers.all();
  // Times over a link include the link already.
  if (!link) {
    add_link_speeds(document["rows"]);
    print_link_speeds(document["rows"]);
  }
  if (options.against_pytorch) {
    document["pytorch"] = bench_pytorch(workers, options.specs, options.bytes,
                                        options.seconds, options.steps, document["rows"]);
  }
  write_json(options.json, document);
  judge(document["rows"]);
}

}  // namespace

void add_bench(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench =
      app.add_subcommand("bench", "time the hooks: gradients of a size, in real processes");
  bench->footer(
      "Examples:\n"
      "  brigade bench --sizes 1M:256M --hooks allreduce,fp16,powersgd:rank=2\n"
      "  brigade bench -n 4 --link 100mbit --against-pytorch --json bench.json\n"
      "  brigade bench --hosts 2 -n 2 --link 1gbit --hooks allreduce,int8,int8:flat=1\n"
      "docs/choosing_a_hook.md has what the columns mean.");
  bench->add_option("--hooks", options->hooks,
                    "names by comma, with options; none: no hook; all hooks when left out");
  bench
      ->add_option("--sizes", options->sizes,
                   "of the gradients: 16M, 1M:256M (doubling), 1M:256M:4, or several by "
                   "comma")
      ->capture_default_str();
  bench->add_option("-n,--ranks", options->ranks, "processes; with --hosts, of each host")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  bench
      ->add_option("--hosts", options->hosts,
                   "with --link: hosts, each with -n ranks; else every rank is a host")
      ->check(CLI::Range(1, 64));
  bench->add_option("--link", options->link,
                    "over a network of this rate (100mbit, 1gbit) instead of loopback; "
                    "root only");
  add_device_option(*bench, options->device, "cpu (Gloo) or cuda (NCCL, a GPU a rank)");
  bench->add_option("--seconds", options->seconds, "to spend on each row, about")
      ->check(number_between(0.001, 600))
      ->capture_default_str();
  bench->add_option("--steps", options->steps, "steps of each row, instead of --seconds")
      ->check(CLI::Range(1, 1'000'000));
  bench->add_flag("--against-pytorch", options->against_pytorch,
                  "the same with PyTorch's own hooks, where a Python with torch is found");
  add_json_option(*bench, options->json);
  bench->callback([options] { run_bench(*options); });
}

}  // namespace brigade::tool
