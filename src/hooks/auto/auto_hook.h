// A hook that measures, and chooses another hook.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/hook.h"
#include "hooks/auto/tuner.h"

namespace brigade {

struct AutoCandidate {
  std::string spec;
  std::shared_ptr<Hook> hook;
};
using MakeTuner = std::function<std::unique_ptr<Tuner>(std::vector<std::string> names)>;

// The number of steps under one hook before the next decision.
inline constexpr int64_t kAutoWindow = 8;

// Begins with exact averaging. Every kAutoWindow steps rank 0 asks its tuner. All ranks
// receive its decision by a broadcast of a few bytes beside the step's first bucket, and
// follow it in the next step. The residuals of the hook that is left are added to that
// step's gradients. `candidates` begins with the most exact hook. `options` is the text as
// given, for the fingerprint.
std::shared_ptr<Hook> make_auto(std::string options, std::vector<AutoCandidate> candidates,
                                MakeTuner tuner = make_tuner);
// Reads the text of its options, such as "least=int8" or
// "among=fp16/powersgd(rank=2,start=0)"; empty: least=int8. Throws ConfigError.
std::shared_ptr<Hook> make_auto_of(std::string_view options);

}  // namespace brigade
