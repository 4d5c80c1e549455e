#include "train/batches.h"

#include <ATen/ATen.h>

#include "brigade/data.h"

namespace brigade::tool {
namespace {

using Kind = TrainData::Kind;

// Torch's tensors have no const form, but nothing writes into these.
template <class T>
at::Tensor view_of(const std::vector<T>& values, at::IntArrayRef shape,
                   at::ScalarType type) {
  return at::from_blob(const_cast<T*>(values.data()), shape,
                       at::TensorOptions().dtype(type));
}

}  // namespace

ExampleCounts count_examples(const TrainData& data, std::int64_t context) {
  const auto count = [&](const Examples& part) {
    if (data.kind != Kind::text) return static_cast<std::int64_t>(part.labels.size());
    // Windows do not overlap, and each needs the character behind it as well.
    return (static_cast<std::int64_t>(part.bytes.size()) - 1) / context;
  };
  return {.train = count(data.train), .test = count(data.test)};
}

BatchMaker::BatchMaker(const TrainData& data, std::int64_t context, c10::Device device)
    : data_(data), context_(context), device_(device) {
  const ExampleCounts counts = count_examples(data, context);
  train_ = make_part(data.train);
  test_ = make_part(data.test);
  train_.size = counts.train;
  test_.size = counts.test;
}

BatchMaker::Part BatchMaker::make_part(const Examples& examples) const {
  Part part;
  if (data_.kind == Kind::text) {
    part.values = view_of(examples.bytes,
                          {static_cast<std::int64_t>(examples.bytes.size())}, at::kByte);
    return part;
  }
  const auto rows = static_cast<std::int64_t>(examples.labels.size());
  part.values = view_of(examples.bytes, {rows, data_.values()}, at::kByte);
  part.labels = view_of(examples.labels, {rows}, at::kLong);
  return part;
}

Batch BatchMaker::make(const Part& part, std::span<const std::int64_t> examples) const {
  const at::Tensor index = at::tensor(at::ArrayRef(examples.data(), examples.size()));
  if (data_.kind == Kind::text) {
    const at::Tensor places =
        (index * context_).unsqueeze(1) + at::arange(context_ + 1, at::kLong);
    const at::Tensor windows = part.values.index_select(0, places.flatten())
                                   .view({index.size(0), context_ + 1})
                                   .to(device_, at::kLong);
    return {windows.narrow(1, 0, context_), windows.narrow(1, 1, context_).reshape({-1})};
  }
  const at::Tensor input = part.values.index_select(0, index).to(at::kFloat) / data_.scale;
  return {input.to(device_), part.labels.index_select(0, index).to(device_)};
}

Batch next_batch(const BatchMaker& batches, DistributedSampler& sampler,
                 std::size_t count) {
  auto rows = sampler.next(count);
  if (!rows) {
    sampler.set_epoch(sampler.epoch() + 1);
    rows = sampler.next(count);
  }
  const std::vector<std::int64_t> examples(rows->begin(), rows->end());
  return batches.train(examples);
}

}  // namespace brigade::tool
