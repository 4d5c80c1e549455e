// The subcommands of the brigade program. A new one needs a folder with its function, a
// line here, and a row in main.cpp's table.
#pragma once

namespace CLI {
class App;
}

namespace brigade::tool {

// Each adds its subcommand with options and a callback to `app`. The callback runs after
// the command line has been read. It sets `exit_code` (0 before) or throws an error of
// brigade/error.h: ConfigError exits with 2, LaunchError with its own code, all others with
// 1.
void add_bench(CLI::App& app, int& exit_code);
void add_demo(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_selftest(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, int& exit_code);

}  // namespace brigade::tool
