#include "common/json_file.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/files/atomic_file.h"
#include "common/options/option_checks.h"

namespace brigade::tool {

void add_json_option(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "write the results to this file as well")
      ->check(not_empty())
      ->type_name("FILE");
  // CLI11 runs it before the callback.
  command.parse_complete_callback([&path] {
    if (!path.empty()) base::check_output_file(path, "--json");
  });
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return;
  base::write_whole(
      path,
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace brigade::tool
