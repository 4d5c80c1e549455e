#include <algorithm>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "brigade/hook.h"

namespace brigade {

struct Bucket::State {
  c10d::GradBucket bucket;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  int64_t index;
  bool is_last;
};

namespace {

int64_t length_of(const at::Tensor& parameter) {
  return parameter.numel() * (parameter.is_complex() ? 2 : 1);
}

c10d::GradBucket side_by_side(at::Tensor buffer,
                              const std::vector<at::Tensor>& parameters) {
  std::vector<size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  size_t end = 0;
  for (const at::Tensor& parameter : parameters) {
    offsets.push_back(end);
    lengths.push_back(static_cast<size_t>(length_of(parameter)));
    sizes.push_back(parameter.sizes());  // a view: the bucket keeps the tensor
    end += lengths.back();
  }
  TORCH_CHECK(buffer.dim() == 1 && static_cast<size_t>(buffer.numel()) == end,
              "Bucket: the parameters have ", end, " elements, but the buffer's shape is ",
              buffer.sizes());
  return c10d::GradBucket(0, 1, std::move(buffer), std::move(offsets), std::move(lengths),
                          std::move(sizes), parameters, std::nullopt);
}

}  // namespace

Bucket::Bucket(c10d::GradBucket bucket, std::vector<std::string> names)
    : state_(std::make_shared<State>(State{bucket, bucket.getParameters(), std::move(names),
                                           static_cast<int64_t>(bucket.getIndex()),
                                           bucket.isLast()})) {}

Bucket::Bucket(at::Tensor buffer, std::vector<at::Tensor> parameters,
               std::vector<std::string> names, int64_t index, bool is_last)
    : state_(std::make_shared<State>(State{side_by_side(std::move(buffer), parameters),
                                           parameters, std::move(names), index, is_last})) {
}

Bucket Bucket::at_place(int64_t index, bool is_last) const {
  Bucket other = *this;
  other.state_ = std::make_shared<State>(*state_);
  other.state_->index = index;
  other.state_->is_last = is_last;
  return other;
}

int64_t Bucket::index() const { return state_->index; }
bool Bucket::is_last() const { return state_->is_last; }
const at::Tensor& Bucket::buffer() const { return state_->bucket.getBuffer(); }
const std::vector<at::Tensor>& Bucket::parameters() const { return state_->parameters; }
const std::vector<std::string>& Bucket::names() const { return state_->names; }

int64_t Bucket::length(size_t place) const {
  return length_of(state_->parameters.at(place));
}

// The Reducer stores complex gradients as pairs of reals, and its own views of them have
// the wrong length, as if the values were complex.
std::vector<at::Tensor> Bucket::gradients() const {
  const auto is_complex = [](const at::Tensor& each) { return each.is_complex(); };
  if (std::ranges::none_of(state_->parameters, is_complex))
    return state_->bucket.getGradients();
  std::vector<at::Tensor> gradients;
  int64_t begin = 0;
  for (const at::Tensor& parameter : state_->parameters) {
    std::vector<int64_t> sizes = parameter.sizes().vec();
    if (parameter.is_complex()) sizes.push_back(2);
    const int64_t length = length_of(parameter);
    gradients.push_back(buffer().narrow(0, begin, length).view(sizes));
    begin += length;
  }
  return gradients;
}

void Bucket::set_buffer(at::Tensor buffer) {
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == state_->bucket.getBuffer().numel(),
              "set_buffer: expected one dimension of ", state_->bucket.getBuffer().numel(),
              " elements, got shape ", buffer.sizes());
  state_->bucket.setBuffer(buffer);
}

}  // namespace brigade
