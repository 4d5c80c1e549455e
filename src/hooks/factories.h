// Makes the hooks of the table, and finds those that the program has registered.
#pragma once
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/error.h"
#include "brigade/hook.h"
#include "brigade/hooks.h"

namespace brigade {

std::shared_ptr<Hook> make_allreduce();
std::shared_ptr<Hook> make_noop();
std::shared_ptr<Hook> make_fixed();
// `flat` has the meaning that TwoPhase gives it.
std::shared_ptr<Hook> make_fp16(bool flat);
std::shared_ptr<Hook> make_bf16(bool flat);
std::shared_ptr<Hook> make_quantize_per_tensor(bool flat);
std::shared_ptr<Hook> make_quantize_per_channel(bool flat);

// Int8 and int4 in blocks, with error feedback.

// Sends one byte a value and a scale of 4 bytes for each 256 values: 1.016 bytes instead of
// float32's 4. Rounding errors are added in the next step. `flat`: see TwoPhase.
std::shared_ptr<Hook> make_int8(bool flat);
// Does the same with half a byte a value and 4 bytes for each 128 values: 0.531 bytes.
std::shared_ptr<Hook> make_int4(bool flat);

// Hooks that send a few of the values unchanged, and keep the rest for later steps.

inline constexpr double kDefaultRatio = 0.01;

// Sends the share `ratio` of the values, those of the largest magnitudes, by the two-phase
// exchange: 6 bytes each. `flat`: see TwoPhase. Throws ConfigError unless 0 < ratio <= 1.
std::shared_ptr<Hook> make_top_k(double ratio, bool flat);
// Sends the share `ratio` of the values, drawn anew in each step, the same on all ranks, by
// one all-reduce without indices. A seed fixes the draws. Throws as make_top_k.
std::shared_ptr<Hook> make_random_k(double ratio, uint64_t seed);

// The option `ratio` of hooks that send a share of the values.

inline void check_ratio(const char* hook, double ratio) {
  if (ratio > 0 && ratio <= 1) return;
  throw ConfigError(
      c10::str(hook, ": ratio is ", ratio, ", expected more than 0, 1 at most"));
}

// The option `small` of dense hooks.

// Returns a hook that gives vectors, and other gradients of fewer than `below` values, an
// exact mean beside `hook`. It is named and printed as `hook` with an option "small". If
// `below` is 0, returns `hook` itself.
std::shared_ptr<Hook> with_small_option(std::shared_ptr<Hook> hook, int64_t below);

// Hooks that the program has registered.

// Returns an empty function if there is no such name.
HookFactory registered_factory(std::string_view name);
std::vector<std::string> registered_names();

// Parses "k=3,exact=1". Throws ConfigError that names the hook.
HookArguments parse_arguments(std::string_view hook, std::string_view text);

}  // namespace brigade
