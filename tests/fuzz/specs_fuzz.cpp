// Parses hooks and optimizers as a user names them, with their options.
#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace brigade;
  const std::string spec(fuzzing::text_of(bytes, size));
  fuzzing::accepts<ConfigError>([&] { make_hook(spec); });
  fuzzing::accepts<ConfigError>([&] { optim::make_optimizer(spec); });
  return 0;
}
