#include <ATen/ATen.h>

#include "brigade/compose_hooks.h"
#include "brigade/ddp_core.h"
#include "ddp/low_precision.h"

namespace brigade {
namespace {

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return "fp16";
    case at::kBFloat16:
      return "bf16";
    case at::kFloat:
      return "fp32";
    case at::kDouble:
      return "fp64";
    default:
      return nullptr;
  }
}

template <class Visitor>
void for_each_field(const MixedPrecision& dtypes, Visitor&& visit) {
  visit("param", dtypes.param_dtype);
  visit("reduce", dtypes.reduce_dtype);
  visit("buffer", dtypes.buffer_dtype);
}

}  // namespace

std::string MixedPrecision::describe() const {
  std::string text;
  for_each_field(*this, [&](const char* field, const auto& dtype) {
    if (!dtype) return;
    const char* name = name_of(*dtype);
    text += std::string(text.empty() ? "" : ", ") + field + " " +
            (name ? name : c10::toString(*dtype));
  });
  return text;
}

void check(const MixedPrecision& dtypes) {
  bool any = false;
  for_each_field(dtypes, [&](const char* field, const auto& dtype) {
    if (!dtype) return;
    any = true;
    if (!name_of(*dtype)) {
      throw ConfigError(c10::str("mixed_precision.", field, "_dtype is ", *dtype,
                                 ", but must be at::kHalf, at::kBFloat16, at::kFloat or "
                                 "at::kDouble"));
    }
  });
  if (!any) {
    throw ConfigError(
        "mixed_precision sets no dtype; set param_dtype, for instance to at::kBFloat16, or "
        "leave mixed_precision out");
  }
}

std::shared_ptr<Hook> reduce_in(at::ScalarType dtype, std::shared_ptr<Hook> inner) {
  if (!inner) inner = make_hook("allreduce", average);
  return in_dtype(dtype, std::move(inner), "", std::string(" in ") + name_of(dtype));
}

}  // namespace brigade
