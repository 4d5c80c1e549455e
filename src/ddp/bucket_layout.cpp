// Which parameters share a bucket.
#include "ddp/core_state.h"

namespace brigade {

void DdpCore::rebuild_buckets() { state_->reducer->rebuild_buckets(); }

std::vector<std::vector<std::string>> DdpCore::bucket_layout() const {
  std::vector<std::vector<std::string>> buckets;
  if (!state_->logger) return buckets;
  for (const auto& indices : state_->logger->get_per_bucket_variable_indices()) {
    auto& bucket = buckets.emplace_back();
    for (const size_t index : indices) bucket.push_back(state_->names.at(index));
  }
  return buckets;
}

void DdpCore::begin_with_buckets(const std::vector<std::vector<std::string>>& names) {
  state_->make_reducer(names);
}

}  // namespace brigade
