#include "bench/link_speeds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/hook_choice.h"
#include "common/options.h"
#include "common/pays_below.h"
#include "common/terminal.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

StepCost cost_in(const json& row) {
  return {.seconds = row["p50_ms"].get<double>() / 1e3, .bytes = row["wire_bytes"]};
}

// Null if it was not measured.
const json* all_reduce_of_size(const json& rows, const json& size) {
  const auto found = std::ranges::find_if(rows, [&](const json& row) {
    return row["hook"] == "allreduce" && row["size_bytes"] == size;
  });
  return found == rows.end() ? nullptr : &*found;
}

bool can_be_compared(const json& row) {
  const std::string hook = row["hook"];
  return row.contains("wire_bytes") && row.contains("verified") && hook != "allreduce" &&
         base_name(hook) != "auto";
}

std::string cell_of(const json& row) {
  if (row["pays"] == "below") return rough_rate_text(row["pays_below_bit_s"]);
  return row["pays"] == "always" ? "any" : "never";
}

// The distinct values of `key` in rows with an answer, in their order.
std::vector<json> values_with_answer(const json& rows, const char* key) {
  std::vector<json> values;
  for (const json& row : rows) {
    if (row.contains("pays") && std::ranges::find(values, row[key]) == values.end())
      values.push_back(row[key]);
  }
  return values;
}

}  // namespace

void add_link_speeds(json& rows) {
  for (json& row : rows) {
    const json* all_reduce = all_reduce_of_size(rows, row["size_bytes"]);
    if (!all_reduce || !can_be_compared(row)) continue;
    const std::optional<double> below = pays_below(cost_in(row), cost_in(*all_reduce));
    row["pays"] = !below ? "never" : std::isinf(*below) ? "always" : "below";
    if (row["pays"] == "below") row["pays_below_bit_s"] = *below;
  }
}

void print_link_speeds(const json& rows) {
  Terminal terminal;
  const std::vector<json> hooks = values_with_answer(rows, "hook");
  const std::vector<json> sizes = values_with_answer(rows, "size_bytes");
  terminal.line();
  if (hooks.empty()) {
    terminal.sentence(
        "Give --hooks allreduce and others to see at which link speed they overtake it.");
    return;
  }
  terminal.sentence(
      "Quicker than allreduce on links slower than this, if a step takes the time above "
      "and "
      "what the link needs for its bytes (any: on every link; never: it sends no less):");
  std::vector<std::vector<std::string>> table{{"hook"}};
  for (const json& size : sizes) table[0].push_back(size_text(size));
  for (const json& hook : hooks) {
    table.push_back({hook});
    for (const json& size : sizes) {
      const auto found = std::ranges::find_if(rows, [&](const json& row) {
        return row["hook"] == hook && row["size_bytes"] == size;
      });
      table.back().push_back(found->contains("pays") ? cell_of(*found) : "-");
    }
  }
  const std::vector<std::string> lines = table_lines(table);
  for (size_t i = 0; i < lines.size(); ++i)
    terminal.line(i == 0 ? terminal.paint(Paint::bold, lines[i]) : lines[i]);
}

}  // namespace brigade::tool
