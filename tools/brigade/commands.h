// The subcommands of the brigade program, one file each. add_NAME puts its command and
// options into `program`; the command runs in CLI11's callback and fails by an exception,
// from which main() makes the exit code: ConfigError 2, LaunchError its own exit_code(),
// any other 1.
#pragma once
#include <CLI/App.hpp>

namespace brigade::tools {

void add_demo(CLI::App& program);
void add_run(CLI::App& program);

}  // namespace brigade::tools
