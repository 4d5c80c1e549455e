// brigade run as a user starts it, and the names that its tests use.
#pragma once
#include <string>
#include <vector>

#include "support/command.h"

namespace brigade {

using testing::Command;
using testing::CommandOptions;
using testing::CommandResult;
using testing::none_left;
using testing::run_command;
using Lines = std::vector<std::string>;

// The words of a command line: brigade run ARGUMENTS.
inline std::vector<std::string> brigade_run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {testing::built_program("brigade"), "run"});
  return arguments;
}

// Runs it to its end. Workers that are told to end have 20 s for it.
inline CommandResult run(std::vector<std::string> arguments, CommandOptions options = {}) {
  options.environment.emplace("BRIGADE_GRACE", "20");
  return run_command(brigade_run(std::move(arguments)), options);
}

}  // namespace brigade
