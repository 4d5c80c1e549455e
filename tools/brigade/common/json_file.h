// --json FILE, which every subcommand has: its results for machines.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace CLI {
class App;
}

namespace brigade::tool {

// Adds the option; once the command line is read, and before the subcommand does anything,
// a file that cannot be written is a usage error.
void add_json_option(CLI::App& command, std::string& path);

// Nothing when `path` is empty. The file is there whole or, when this throws Error (a disk
// that is full), as it was.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace brigade::tool
