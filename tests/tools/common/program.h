// Runs the brigade program with --json into a fresh folder, and reads its output.
#pragma once
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/command.h"

namespace brigade::testing {

inline std::string brigade_program() { return built_program("brigade"); }

class Program {
 public:
  explicit Program(std::vector<std::string> words,
                   std::map<std::string, std::string> environment = {}) {
    words.insert(words.begin(), brigade_program());
    words.insert(words.end(), {"--json", file_});
    const CommandResult result = run_command(
        std::move(words),
        {.environment = std::move(environment), .wall = std::chrono::seconds(90)});
    exit_code = result.exit_code;
    out = result.out;
    err = result.err;
  }
  bool wrote_json() const { return !std::filesystem::is_empty(folder_.path()); }
  nlohmann::json json() const { return nlohmann::json::parse(std::ifstream(file_)); }

  int exit_code = -1;
  std::string out;
  std::string err;

 private:
  TemporaryFolder folder_;
  std::string file_ = folder_.path() + "/out.json";
};

}  // namespace brigade::testing
