#include "engine/bucket_layout.h"

#include <sstream>

namespace brigade::engine {

std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << ' ' << tensor.sizes() << " on "
      << c10::DeviceTypeName(tensor.device().type(), true);
  if (!tensor.is_contiguous()) out << ", strides " << tensor.strides();
  return out.str();
}

std::string describe_layout(const Buckets& buckets, const NameOf& name_of) {
  std::string text;
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (const at::Tensor& parameter : buckets[bucket]) {
      text += "bucket " + std::to_string(bucket) + ": " + name_of(parameter) + ", " +
              describe(parameter) + '\n';
    }
  }
  return text;
}

void check_same_layout(const ProcessGroup& group, const std::string& layout) {
  group.check_same("buckets", layout,
                   "build the same model on every rank, and wrap it with the same options");
}

}  // namespace brigade::engine
