#include "bench/pytorch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "bench/measurement.h"
#include "brigade/error.h"
#include "common/hook_choice.h"
#include "common/json.h"
#include "common/options.h"
#include "common/terminal.h"

// This is the script itself, in the program's read-only data.
asm(R"(
  .section .rodata
  .type brigade_bench_pytorch_begin, @object
  .type brigade_bench_pytorch_end, @object
brigade_bench_pytorch_begin:
  .incbin ")" BRIGADE_BENCH_PYTORCH_PY R"("
brigade_bench_pytorch_end:
  .previous
)");
extern "C" {
extern const char brigade_bench_pytorch_begin[];
extern const char brigade_bench_pytorch_end[];
}

namespace brigade::tool {
namespace {

using nlohmann::json;

bool has_torch(const std::string& python) {
  const pid_t child = fork();
  if (child == 0) {
    for (int fd : {1, 2}) close(fd);
    execlp(python.c_str(), python.c_str(), "-c",
           "import sys, importlib.util as u; sys.exit(u.find_spec('torch') is None)",
           nullptr);
    _exit(127);
  }
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

std::vector<std::string> candidates() {
  std::vector<std::string> list;
  const char* chosen = std::getenv("PYTHON_EXEC");
  if (chosen && *chosen) return {chosen};
  return {"python3", "python", BRIGADE_PYTHON};
}

// Says why PyTorch's hook of that name cannot be timed; empty if it can. docs/facts.md says
// what would happen. LibTorch's own averaging, without a hook, always can.
std::string obstacle(const std::string& spec, int64_t buckets, bool gloo) {
  if (spec == kNoHook) return "";
  const TorchHook& torch = entry_of(base_name(spec)).torch;
  if (torch.name.empty() || spec.find('+') != std::string::npos) return "PyTorch has none";
  const bool fails =
      torch.fails == TorchHook::Fails::always ||
      (torch.fails == TorchHook::Fails::over_gloo && gloo) ||
      (torch.fails == TorchHook::Fails::over_gloo_with_buckets && gloo && buckets > 1);
  return fails ? std::string(torch.why) : "";
}

json skipped(const json& row, const std::string& why) {
  return {{"size_bytes", row["size_bytes"]}, {"hook", row["hook"]}, {"skipped", why}};
}

// Tells the script what to do, in the form that it reads.
json work_for(const WorkerOptions& workers, const json& ours, double seconds, int steps,
              std::vector<json>& rows) {
  json work = json::array();
  for (const json& row : ours) {
    const std::string why =
        obstacle(row["hook"], row["buckets"].get<int64_t>(), workers.device == "cpu");
    if (!why.empty()) {
      rows.push_back(skipped(row, why));
      continue;
    }
    const std::string spec = row["hook"];
    const TorchHook torch = entry_of(spec == kNoHook ? "allreduce" : base_name(spec)).torch;
    work.push_back({{"size_bytes", row["size_bytes"]},
                    {"torch_hook", spec == kNoHook ? "" : torch.name},
                    {"tolerance", torch.tolerance},
                    {"hook", row["hook"]},
                    {"shapes", shapes_of_size(row["size_bytes"])},
                    {"seconds", seconds},
                    {"steps", steps}});
  }
  return work;
}

void print(const json& ours, const json& theirs) {
  Terminal terminal;
  terminal.line();
  terminal.line(terminal.paint(
      Paint::bold, padded("size", 9) + padded("hook", 34) + padded("ours ms", -9) +
                       padded("PyTorch ms", -12) + padded("ours/PyTorch", -14)));
  for (const json& row : theirs) {
    std::string line = padded(size_text(row["size_bytes"]), 9) +
                       padded(row["hook"].get<std::string>(), 34);
    if (row.contains("skipped")) {
      terminal.line(line + "  skipped: " + row["skipped"].get<std::string>());
      continue;
    }
    for (const json& own : ours) {
      if (own["hook"] != row["hook"] || own["size_bytes"] != row["size_bytes"]) continue;
      const double mine = own["p50_ms"], other = row["p50_ms"];
      line += padded(decimals(mine, 2), -9) + padded(decimals(other, 2), -12) +
              padded(decimals(mine / other, 2), -14);
      if (row["steps"] == 1) line += "  of one step";
      if (!row.value("verified", true)) line += terminal.paint(Paint::red, "  WRONG");
    }
    terminal.line(line);
  }
}

}  // namespace

json bench_pytorch(const WorkerOptions& workers, const std::vector<std::string>& specs,
                   const std::vector<int64_t>& sizes, double seconds, int steps,
                   const json& ours) {
  Terminal terminal;
  std::string python, tried;
  for (const std::string& candidate : candidates()) {
    if (candidate.empty()) continue;
    tried += (tried.empty() ? "" : ", ") + candidate;
    if (python.empty() && has_torch(candidate)) python = candidate;
  }
  if (python.empty()) {
    const std::string why =
        "no Python with torch here (tried " + tried + "; set PYTHON_EXEC to one)";
    terminal.line("PyTorch's hooks: skipped: " + why);
    return {{"skipped", why}};
  }
  std::vector<json> rows;
  const json work = work_for(workers, ours, seconds, steps, rows);
  const Answers answers;
  terminal.progress("PyTorch's own hooks");
  if (!work.empty()) {
    run_workers(
        workers,
        {python, "-c", std::string(brigade_bench_pytorch_begin, brigade_bench_pytorch_end),
         work.dump(), answers.path(), workers.device});
  }
  for (const json& row : answers.all()) rows.push_back(row);
  // Sorts the rows into the order of our own.
  json sorted = json::array();
  for (const int64_t size : sizes) {
    for (const std::string& spec : specs) {
      for (const json& row : rows) {
        if (row["hook"] == spec && row["size_bytes"] == size) sorted.push_back(row);
      }
    }
  }
  print(ours, sorted);
  return {{"python", python}, {"rows", sorted}};
}

}  // namespace brigade::tool
