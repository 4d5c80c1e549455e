// Hooks that treat a bucket as one run of numbers.
#pragma once
#include <memory>

#include "brigade/hook.h"

namespace brigade {

std::shared_ptr<Hook> make_allreduce();
std::shared_ptr<Hook> make_noop();
std::shared_ptr<Hook> make_fixed();
// `flat`: as in TwoPhase.
std::shared_ptr<Hook> make_fp16(bool flat);
std::shared_ptr<Hook> make_bf16(bool flat);
std::shared_ptr<Hook> make_quantize_per_tensor(bool flat);
std::shared_ptr<Hook> make_quantize_per_channel(bool flat);

}  // namespace brigade
