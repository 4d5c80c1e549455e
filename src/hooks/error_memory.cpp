#include "hooks/error_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/huge_pages.h"
#include "hooks/stream_use.h"

namespace brigade {

Residuals ErrorMemory::of(const Bucket& bucket, const std::string& division) {
  const std::string& name = bucket.names().front();
  std::shared_ptr<Flat>& flat = flat_[name];
  if (!flat || !fits(bucket, flat)) {
    flat = assemble(bucket);
    division_.erase(name);
    // Rebuilt buckets leave memory behind that no parameter uses any more.
    std::erase_if(flat_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  Residuals residuals = in(*flat);
  residuals.moved = std::exchange(division_[name], division) != division;
  return residuals;
}

Residuals ErrorMemory::in(Flat& flat) const {
  if (!reverts_ || flat.written) return flat.now;
  if (!flat.other.defined())
    flat.other = base::empty_in_huge_pages(flat.now.sizes(), flat.now.options());
  use_on_current_stream(flat.other);
  std::swap(flat.now, flat.other);
  flat.written = true;
  return {flat.other, flat.now};
}

bool ErrorMemory::fits(const Bucket& bucket, const std::shared_ptr<Flat>& flat) const {
  int64_t begin = 0;
  for (size_t index = 0; index < bucket.names().size(); ++index) {
    const auto found = errors_.find(bucket.names()[index]);
    if (found == errors_.end() || found->second.flat != flat ||
        found->second.begin != begin || found->second.length != bucket.length(index))
      return false;
    begin += bucket.length(index);
  }
  return begin == flat->now.numel();
}

std::shared_ptr<ErrorMemory::Flat> ErrorMemory::assemble(const Bucket& bucket) {
  const auto zeros = [&] {
    return base::empty_in_huge_pages(bucket.buffer().sizes(),
                                     bucket.buffer().options().dtype(at::kFloat))
        .zero_();
  };
  auto flat = std::make_shared<Flat>(Flat{.now = zeros()});
  flat->written = std::ranges::any_of(bucket.names(), [&](const std::string& name) {
    const auto found = errors_.find(name);
    return found != errors_.end() && found->second.flat->written;
  });
  if (flat->written) flat->other = zeros();
  int64_t begin = 0;
  for (size_t index = 0; index < bucket.names().size(); ++index) {
    Slice& error = errors_[bucket.names()[index]];
    const Slice place{flat, begin, bucket.length(index)};
    begin += place.length;
    if (error.flat) {
      use_on_current_stream(error.flat->now);
      use_on_current_stream(error.flat->committed());
      place.in(flat->now).copy_(error.in(error.flat->now));
      if (flat->written) place.in(flat->other).copy_(error.in(error.flat->committed()));
    }
    error = place;
  }
  return flat;
}

void ErrorMemory::save(HookState& state) const {
  for (const auto& [name, error] : errors_)
    state.tensors[kErrorPrefix + name] = error.in(error.flat->now).clone();
}

void ErrorMemory::load(const HookState& state) {
  flat_.clear();
  division_.clear();
  errors_.clear();
  const std::string prefix = kErrorPrefix;
  for (const auto& [key, tensor] : state.tensors) {
    if (!key.starts_with(prefix)) continue;
    auto flat = std::make_shared<Flat>(Flat{.now = tensor.clone().flatten()});
    errors_[key.substr(prefix.size())] = {flat, 0, tensor.numel()};
  }
}

void ErrorMemory::commit() {
  reverts_ = true;
  for (auto& [name, error] : errors_) error.flat->written = false;
}

void ErrorMemory::revert() {
  for (auto& [name, error] : errors_) {
    if (std::exchange(error.flat->written, false))
      error.flat->now = std::exchange(error.flat->other, {});
  }
  division_.clear();
}

}  // namespace brigade
