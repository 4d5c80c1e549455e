// The examples of brigade train as tensors, and in batches.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "train/data/data.h"

namespace brigade {
class DistributedSampler;
}

namespace brigade::tool {

struct Batch {
  at::Tensor input;   // {batch, values} of float, or {batch, time} of int64
  at::Tensor target;  // {batch} or {batch * time}, int64
};

// Uses the memory of `data`, which must outlive it.
class BatchMaker {
 public:
  // `context`: how many characters an example of text has.
  BatchMaker(const TrainData& data, std::int64_t context, c10::Device device);

  std::int64_t train_size() const { return train_.size; }
  std::int64_t test_size() const { return test_.size; }
  Batch train(std::span<const std::int64_t> examples) const {
    return make(train_, examples);
  }
  Batch test(std::span<const std::int64_t> examples) const { return make(test_, examples); }

 private:
  struct Part {
    at::Tensor values;  // {examples, values}, or all characters in a row
    at::Tensor labels;
    std::int64_t size = 0;
  };
  Part make_part(const Examples& examples) const;
  Batch make(const Part& part, std::span<const std::int64_t> examples) const;

  const TrainData& data_;
  std::int64_t context_;
  c10::Device device_;
  Part train_, test_;
};

// The next `count` examples of this rank to train on, epoch after epoch.
Batch next_batch(const BatchMaker& batches, DistributedSampler& sampler, std::size_t count);

// How many examples there are to train and to test on. No torch.
struct ExampleCounts {
  std::int64_t train = 0, test = 0;
};
ExampleCounts count_examples(const TrainData& data, std::int64_t context);

}  // namespace brigade::tool
