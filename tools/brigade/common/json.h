// Results for machines: --json FILE, which every subcommand has, the library's record of a
// run by its short names, and what workers tell the process that started them.
#pragma once
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "brigade/report.h"

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

using report::machine_setup;
using report::RunRecord;
using report::Series;
using report::Span;
using report::StepPoint;
using report::Table;

// Lines of JSON from workers to the process that started them, through memory: no file that
// could be left behind. Workers, forked or started as programs, append to path().
class Answers {
 public:
  Answers();
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  std::string path() const;  // good while this process lives
  void add(const nlohmann::json& answer) const;
  // All so far. A line that is not JSON is an Error.
  std::vector<nlohmann::json> all() const;

 private:
  int fd_ = -1;
  int owner_ = 0;
};

}  // namespace brigade::tool
