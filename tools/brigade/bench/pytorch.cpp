#include "bench/pytorch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "bench/reduction.h"
#include "brigade/error.h"
#include "brigade/hooks/registry.h"
#include "common/answers.h"
#include "common/hook_choice.h"
#include "common/options/number_text.h"
#include "common/terminal.h"

// The script itself, in the program's read-only data.
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

// PyTorch has the hooks of its DDPCommHookType, and no other; it can do without.
bool is_pytorchs(const std::string& name) {
  if (name == kNoHook) return true;
  for (auto type = DDPCommHookType::ALLREDUCE; type <= DDPCommHookType::NOOP;
       type = static_cast<DDPCommHookType>(static_cast<int>(type) + 1)) {
    if (base_name(std::string(hook_spec(type))) == name) return true;
  }
  return false;
}

// Why PyTorch's hook of that name cannot be timed; empty: it can. What happens otherwise is
// in docs/facts.md.
std::string obstacle(const std::string& spec, int64_t buckets, bool gloo) {
  const std::string name = base_name(spec);
  if (spec.find('+') != std::string::npos || !is_pytorchs(name)) return "PyTorch has none";
  if (name == "batched_powersgd") return "PyTorch's fails: an assertion on its own matrix";
  if (gloo && name.starts_with("quantize_"))
    return "PyTorch's fails over Gloo: IndexError in its own hook";
  if (gloo && name == "powersgd" && buckets > 1)
    return "PyTorch's hangs over Gloo with more than one bucket";
  return "";
}

json skipped(const json& row, const std::string& why) {
  return {{"size_bytes", row["size_bytes"]}, {"hook", row["hook"]}, {"skipped", why}};
}

// What the script is to do, as it reads it.
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
    work.push_back({{"size_bytes", row["size_bytes"]},
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
  // In the order of our own rows.
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
