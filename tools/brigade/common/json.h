// Results for machines: the option --json FILE, short names for the library's record of a
// run, and workers' answers to the process that started them.
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

// Adds the option. Once the command line is read, and before the subcommand does anything,
// a file that cannot be written is a usage error.
void add_json_option(CLI::App& command, std::string& path);

// Does nothing when `path` is empty. Writes the whole file or, when it throws Error (the
// disk is full), leaves the file as it was.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

using report::machine_setup;
using report::RunRecord;
using report::Series;
using report::Span;
using report::StepPoint;
using report::Table;

// Carries lines of JSON from workers, forked or started as programs, to the process that
// started them. They append to path(), which is memory: no file can be left behind.
class Answers {
 public:
  Answers();
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  std::string path() const;  // valid while this process lives
  void add(const nlohmann::json& answer) const;
  // All answers so far. Throws Error for a line that is not JSON.
  std::vector<nlohmann::json> all() const;

 private:
  int fd_ = -1;
  int owner_ = 0;
};

}  // namespace brigade::tool
