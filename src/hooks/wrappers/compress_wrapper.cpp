#include "brigade/compose_hooks.h"
#include "brigade/hooks.h"

namespace brigade {

std::shared_ptr<Hook> fp16_compress_wrapper(std::shared_ptr<Hook> inner) {
  return in_dtype(at::kHalf, std::move(inner), "fp16+", "");
}
std::shared_ptr<Hook> bf16_compress_wrapper(std::shared_ptr<Hook> inner) {
  return in_dtype(at::kBFloat16, std::move(inner), "bf16+", "");
}

}  // namespace brigade
