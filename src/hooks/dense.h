// Hooks without options that treat a bucket as one run of numbers.
#pragma once
#include <memory>

#include "brigade/hook.h"

namespace brigade {

std::shared_ptr<Hook> make_allreduce();
std::shared_ptr<Hook> make_noop();
std::shared_ptr<Hook> make_fp16();
std::shared_ptr<Hook> make_bf16();
std::shared_ptr<Hook> make_quantize_per_tensor();
std::shared_ptr<Hook> make_quantize_per_channel();

}  // namespace brigade
