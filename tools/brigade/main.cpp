#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/exception_text.h"
#include "brigade/error.h"
#include "brigade/launch.h"
#include "common/command.h"
#include "common/removed.h"
#include "common/standard_output.h"

namespace {

constexpr std::array kCommands{
    &brigade::tool::add_bench, &brigade::tool::add_demo,     &brigade::tool::add_info,
    &brigade::tool::add_run,   &brigade::tool::add_selftest, &brigade::tool::add_train,
};

int fail(const std::string& command, const char* what, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", command.c_str(), what);
  return exit_code;
}

// "brigade run", for errors.
std::string command_name(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? "brigade" : "brigade " + chosen.front()->get_name();
}

// Refuses a command of an earlier version, whatever stands behind it.
void refuse_removed_command(const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with("-")) return;
  const std::string instead = brigade::tool::instead_of(words[0]);
  if (!instead.empty())
    throw brigade::ConfigError("unknown command " + words[0] + ": " + instead);
}

// An error in the command line, which may have an option of an earlier version.
std::string explain(const CLI::ParseError& error, const std::string& name, int argc,
                    char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string instead =
        word.starts_with("--") ? brigade::tool::instead_of(word) : "";
    if (!instead.empty())
      return "unknown option " + word.substr(0, word.find('=')) + ": " + instead;
  }
  return std::string(error.what()) + " (see " + name + " --help)";
}

// A "--" may stand between a subcommand's options and a program's name. CLI11 would take it
// for the end of the subcommand.
std::vector<std::string> without_separator(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto named = [&](const CLI::App* command) {
    return !words.empty() && command->get_name() == words[0] &&
           command->get_prefix_command();
  };
  const auto commands = app.get_subcommands(named);
  if (commands.empty()) return words;
  for (size_t i = 1; i < words.size() && words[i].starts_with('-'); ++i) {
    if (words[i] == "--") {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    const CLI::Option* option = commands[0]->get_option_no_throw(words[i]);
    if (option && option->get_expected_max() > 0) ++i;
  }
  return words;
}

int run(CLI::App& app, int argc, char** argv, const int& exit_code) try {
  std::vector<std::string> words = without_separator(app, argc, argv);
  refuse_removed_command(words);
  // CLI11 takes the words from the back.
  std::ranges::reverse(words);
  app.parse(std::move(words));
  if (app.get_subcommands().empty()) std::fputs(app.help().c_str(), stdout);
  if (exit_code == 0) brigade::tool::check_standard_output();
  return exit_code;
} catch (const CLI::Success& asked_for_help) {
  const int code = app.exit(asked_for_help);
  std::cout.flush();
  return code == 0 && (std::fflush(stdout) != 0 || std::cout.bad()) ? 1 : code;
} catch (const CLI::ParseError& error) {
  const std::string name = command_name(app);
  return fail(name, explain(error, name, argc, argv).c_str(), 2);
} catch (const brigade::ConfigError& error) {
  return fail(command_name(app), error.what(), 2);
} catch (const brigade::LaunchError& error) {
  return fail(command_name(app), error.what(), error.exit_code());
} catch (const std::exception& error) {
  return fail(command_name(app), brigade::base::text_of(error).c_str(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  brigade::tool::occupy_standard_streams();
  CLI::App app("Data-parallel training with LibTorch: programs, hooks and measurements",
               "brigade");
  app.set_version_flag("--version,-V", "brigade " BRIGADE_VERSION);
  app.require_subcommand(0, 1);
  int exit_code = 0;
  for (auto* add : kCommands) add(app, exit_code);
  const int code = run(app, argc, argv, exit_code);
  std::cout.flush();
  std::fflush(nullptr);
  // We must not return: a thread that waits for a mute store must not meet destructors.
  _exit(code);
}
