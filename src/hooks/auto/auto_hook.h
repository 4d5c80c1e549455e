// A hook that chooses another by what it measures.
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

// Steps under one hook before the next decision.
inline constexpr int64_t kAutoWindow = 8;

// Begins with exact averaging. Every kAutoWindow steps rank 0 asks its tuner, and all ranks
// learn its decision by a broadcast of a few bytes beside the step's first bucket, and
// follow it in the next step. What the hook that is left still owes is added to that step's
// gradients. `candidates`: from the most exact on. `options` is for the fingerprint, as
// they were given.
std::shared_ptr<Hook> make_auto(std::string options, std::vector<AutoCandidate> candidates,
                                MakeTuner tuner = make_tuner);
// From the text of its options, "least=int8" or "among=fp16/powersgd(rank=2,start=0)";
// empty: least=int8. Throws ConfigError.
std::shared_ptr<Hook> make_auto_of(std::string_view options);

}  // namespace brigade
