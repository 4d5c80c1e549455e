#include "local_sgd/hook_averaging.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "engine/engine.h"

namespace brigade {
namespace {

using Items = std::vector<AveragedTensor>;

// Neighbours of one dtype and device share a bucket.
std::vector<Items> buckets_of(const Items& items, int64_t bucket_bytes) {
  std::vector<Items> buckets;
  int64_t bytes = 0;
  for (const AveragedTensor& item : items) {
    const auto more = static_cast<int64_t>(item.values.nbytes());
    const bool fits = !buckets.empty() && bytes + more <= bucket_bytes &&
                      buckets.back().front().values.dtype() == item.values.dtype() &&
                      buckets.back().front().values.device() == item.values.device();
    if (!fits) {
      buckets.emplace_back();
      bytes = 0;
    }
    buckets.back().push_back(item);
    bytes += more;
  }
  return buckets;
}

Bucket make_bucket(size_t index, size_t count, const Items& items) {
  std::vector<at::Tensor> flat, parameters;
  std::vector<size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::vector<std::string> names;
  size_t offset = 0;
  for (const AveragedTensor& item : items) {
    flat.push_back(item.values.flatten());
    parameters.push_back(item.parameter);
    sizes.push_back(item.parameter.sizes());  // the bucket holds the parameter
    names.push_back(item.name);
    offsets.push_back(offset);
    lengths.push_back(static_cast<size_t>(item.values.numel()));
    offset += lengths.back();
  }
  c10d::GradBucket bucket(index, count, at::cat(flat), offsets, lengths, sizes, parameters,
                          std::nullopt);
  return Bucket(std::move(bucket), std::move(names));
}

}  // namespace

const std::vector<at::Tensor>& Means::wait() {
  for (PendingMean& part : parts_) {
    part.future->waitAndThrow();
    const at::Tensor flat = part.future->value().toTensor();
    int64_t begin = 0;
    for (const at::Tensor& parameter : part.parameters) {
      values_.push_back(flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
  parts_.clear();
  return values_;
}

HookAveraging::HookAveraging(ProcessGroup group, std::shared_ptr<Hook> hook,
                             const std::string& what)
    : engine_(engine::Engine::make(group, group.unique_name(what))) {
  engine_->set_hook(std::move(hook), /*agreed=*/true);
}

HookAveraging::~HookAveraging() { engine_->close(); }

Means HookAveraging::start(const Items& items, int64_t bucket_bytes) {
  engine_->hook()->begin_pass({});
  Means means;
  const std::vector<Items> buckets = buckets_of(items, bucket_bytes);
  for (size_t index = 0; index < buckets.size(); ++index) {
    Means::PendingMean& part = means.parts_.emplace_back();
    for (const AveragedTensor& item : buckets[index])
      part.parameters.push_back(item.parameter);
    part.future = engine_->run(make_bucket(index, buckets.size(), buckets[index]));
  }
  return means;
}

const std::shared_ptr<Hook>& HookAveraging::hook() const { return engine_->hook(); }
HookStats HookAveraging::stats() const { return engine_->stats(); }

}  // namespace brigade
