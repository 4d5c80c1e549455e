#include "brigade/hook.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace brigade {
namespace {

class FunctionHook : public Hook {
 public:
  FunctionHook(std::string name, std::function<Task<at::Tensor>(Bucket, Comm&)> reduce)
      : name_(std::move(name)), reduce_(std::move(reduce)) {}
  std::string name() const override { return name_; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    return reduce_(std::move(bucket), comm);
  }

 private:
  std::string name_;
  std::function<Task<at::Tensor>(Bucket, Comm&)> reduce_;
};

}  // namespace

std::shared_ptr<Hook> make_hook(std::string name,
                                std::function<Task<at::Tensor>(Bucket, Comm&)> reduce) {
  return std::make_shared<FunctionHook>(std::move(name), std::move(reduce));
}

Task<at::Tensor> average(Bucket bucket, Comm& comm) {
  at::Tensor mean = bucket.buffer();
  if (comm.size() == 1) co_return mean;
  // In place a sparse tensor's values would be those of the gradient.
  if (mean.is_sparse()) {
    mean = mean.div(comm.size());
  } else {
    mean.div_(comm.size());
  }
  co_await comm.all_reduce(mean);
  co_return mean;
}

namespace {

bool is_own(const auto& value) { return value.first.starts_with(kOwnPrefix); }

bool keeps_nothing(const HookState& shard) {
  return shard.tensors.empty() && !shard.values.empty() &&
         std::ranges::all_of(shard.values, [](const auto& value) { return is_own(value); });
}

}  // namespace

HookState combine_states(std::span<const HookState> shards) {
  if (shards.empty())
    throw ConfigError("combine_states: needs the state of at least one rank");
  std::vector<const HookState*> keepers;
  for (const HookState& shard : shards) {
    if (!keeps_nothing(shard)) keepers.push_back(&shard);
  }
  if (keepers.empty()) return {};
  HookState combined = *keepers.front();
  std::erase_if(combined.values, [](const auto& value) { return is_own(value); });
  for (auto& [key, tensor] : combined.tensors) {
    if (key.rfind(kErrorPrefix, 0) != 0) continue;
    at::Tensor sum = at::zeros_like(tensor, at::kDouble);
    for (const HookState* shard : keepers) {
      auto found = shard->tensors.find(key);
      if (found == shard->tensors.end() || found->second.sizes() != tensor.sizes()) {
        throw ConfigError("combine_states: the shards differ in '" + key + "'");
      }
      sum += found->second;
    }
    tensor = (sum / static_cast<int64_t>(keepers.size())).to(tensor.scalar_type());
  }
  return combined;
}

}  // namespace brigade
