#include "hooks/error_memory.h"

#include <ATen/ATen.h>

#include "base/huge_pages.h"
#include "hooks/stream_use.h"

namespace brigade {

at::Tensor ErrorMemory::of(const Bucket& bucket) {
  at::Tensor& flat = flat_[bucket.names().front()];
  if (!flat.defined() || !fits(bucket, flat)) {
    flat = assemble(bucket);
    division_.erase(bucket.names().front());
    drop_left_behind();
  }
  return flat;
}

bool ErrorMemory::moved(const Bucket& bucket, const std::string& division) {
  std::string& last = division_[bucket.names().front()];
  if (last == division) return false;
  last = division;
  return true;
}

// Buckets that were rebuilt leave tensors behind that no parameter looks into any more.
void ErrorMemory::drop_left_behind() {
  std::erase_if(flat_, [&](const auto& entry) {
    return std::none_of(errors_.begin(), errors_.end(), [&](const auto& error) {
      return error.second.is_alias_of(entry.second);
    });
  });
}

bool ErrorMemory::fits(const Bucket& bucket, const at::Tensor& flat) const {
  int64_t begin = 0;
  for (size_t index = 0; index < bucket.names().size(); ++index) {
    const auto found = errors_.find(bucket.names()[index]);
    if (found == errors_.end() || !found->second.is_alias_of(flat) ||
        found->second.storage_offset() - flat.storage_offset() != begin) {
      return false;
    }
    begin += bucket.length(index);
  }
  return begin == flat.numel();
}

at::Tensor ErrorMemory::assemble(const Bucket& bucket) {
  at::Tensor flat = base::empty_in_huge_pages(bucket.buffer().sizes(),
                                              bucket.buffer().options().dtype(at::kFloat))
                        .zero_();
  int64_t begin = 0;
  for (size_t index = 0; index < bucket.names().size(); ++index) {
    at::Tensor view = flat.narrow(0, begin, bucket.length(index));
    begin += view.numel();
    at::Tensor& error = errors_[bucket.names()[index]];
    use_on_current_stream(error);
    if (error.defined()) view.copy_(error.flatten());
    error = view;
  }
  return flat;
}

void ErrorMemory::save(HookState& state) const {
  for (const auto& [name, error] : errors_)
    state.tensors[kErrorPrefix + name] = error.clone();
}

void ErrorMemory::load(const HookState& state) {
  flat_.clear();
  division_.clear();
  errors_.clear();
  const std::string prefix = kErrorPrefix;
  for (const auto& [key, tensor] : state.tensors) {
    if (key.rfind(prefix, 0) == 0) errors_[key.substr(prefix.size())] = tensor.clone();
  }
}

}  // namespace brigade
