#include <torch/csrc/distributed/c10d/comm.hpp>

#include "brigade/hook.h"

namespace brigade {

struct Bucket::State {
  c10d::GradBucket bucket;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
};

Bucket::Bucket(c10d::GradBucket bucket, std::vector<std::string> names)
    : state_(std::make_shared<State>(
          State{bucket, bucket.getParameters(), std::move(names)})) {}

int64_t Bucket::index() const { return static_cast<int64_t>(state_->bucket.getIndex()); }
bool Bucket::is_last() const { return state_->bucket.isLast(); }
const at::Tensor& Bucket::buffer() const { return state_->bucket.getBuffer(); }
std::vector<at::Tensor> Bucket::gradients() const { return state_->bucket.getGradients(); }
const std::vector<at::Tensor>& Bucket::parameters() const { return state_->parameters; }
const std::vector<std::string>& Bucket::names() const { return state_->names; }

void Bucket::set_buffer(at::Tensor buffer) {
  TORCH_CHECK(buffer.dim() == 1 && buffer.numel() == state_->bucket.getBuffer().numel(),
              "set_buffer: expected one dimension of ", state_->bucket.getBuffer().numel(),
              " elements, got shape ", buffer.sizes());
  state_->bucket.setBuffer(buffer);
}

}  // namespace brigade
