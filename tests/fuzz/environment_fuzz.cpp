// Reads the variables of every launcher. The input is NAME=VALUE, with zero bytes between.
#include <map>

#include "fuzz.h"
#include "group/environment.h"

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace brigade;
  std::map<std::string, std::string> variables;
  const auto pieces = fuzzing::pieces(fuzzing::text_of(bytes, size));
  for (const std::string& piece : pieces) {
    const size_t equals = piece.find('=');
    if (equals != std::string::npos)
      variables[piece.substr(0, equals)] = piece.substr(equals + 1);
  }
  const group::Lookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  fuzzing::accepts<ConfigError>([&] { group::read_timeout(lookup); });
  fuzzing::accepts<ConfigError>([&] {
    const group::Environment environment = group::read_environment(lookup);
    if (environment.rank < 0 || environment.rank >= environment.world_size)
      __builtin_trap();
    group::read_master(lookup, environment);
  });
  fuzzing::accepts<ConfigError>([&] { group::first_host("LIST", pieces[0]); });
  fuzzing::accepts<ConfigError>([&] { group::tasks_on_node("TASKS", pieces[0], 1); });
  return 0;
}
