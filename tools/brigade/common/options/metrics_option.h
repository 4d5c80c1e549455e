// --metrics-port, for subcommands that start a job.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

namespace brigade::tool {

inline void add_metrics_option(CLI::App& command, std::optional<std::uint16_t>& port) {
  command
      .add_option("--metrics-port", port,
                  "serve the numbers of this host's workers to Prometheus, at this port of "
                  "127.0.0.1; 0: a free one, which is printed")
      ->check(CLI::Range(0, 65'535))
      ->type_name("PORT");
}

}  // namespace brigade::tool
