// The hooks of docs/writing_a_hook.md, from three lines to a compressor with memory.
#pragma once
#include <ATen/ATen.h>
#include <brigade/brigade.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace custom {

using brigade::Bucket;
using brigade::Comm;
using brigade::Task;

inline Task<at::Tensor> mean(Bucket bucket, Comm& comm) {
  at::Tensor gradients = bucket.buffer().div_(comm.size());
  co_await comm.all_reduce(gradients);
  co_return gradients;
}

inline Task<at::Tensor> half(Bucket bucket, Comm& comm) {
  at::Tensor small = bucket.buffer().div(comm.size()).to(at::kHalf);
  co_await comm.all_reduce(small);
  co_return bucket.buffer().copy_(small);
}

// As half, but no value is too large or too small for fp16: the ranks agree on a scale.
inline Task<at::Tensor> scaled_half(Bucket bucket, Comm& comm) {
  at::Tensor largest = bucket.buffer().abs().max().view(1);
  at::Tensor of_ranks = at::empty(comm.size(), largest.options());
  co_await comm.all_gather(largest, of_ranks);

  at::Tensor scale = of_ranks.max().clamp_min(1e-30) * comm.size();
  at::Tensor small = bucket.buffer().div(scale).to(at::kHalf);
  co_await comm.all_reduce(small);
  co_return bucket.buffer().copy_(small).mul_(scale / comm.size());
}

// Matrices in bf16 and everything else exactly, both at the same time.
inline Task<at::Tensor> mixed(Bucket bucket, Comm& comm) {
  std::vector<at::Tensor> gradients = bucket.gradients();
  Comm::Body body = [&gradients](int lane, Comm& own) -> Task<void> {
    std::vector<at::Tensor> mine;
    for (const at::Tensor& gradient : gradients) {
      if ((gradient.dim() > 1) == (lane == 0)) mine.push_back(gradient.flatten());
    }
    if (mine.empty()) co_return;  // so it is on every rank: buckets are alike
    at::Tensor flat = at::cat(mine).div_(own.size());
    if (lane == 0) flat = flat.to(at::kBFloat16);
    co_await own.all_reduce(flat);
    int64_t begin = 0;
    for (at::Tensor& view : mine) {
      view.copy_(flat.narrow(0, begin, view.numel()));
      begin += view.numel();
    }
  };
  co_await comm.split(2, body);
  co_return bucket.buffer();
}

// Sends the largest values only; what it did not send is added in the next step.
class TopK : public brigade::Hook {
 public:
  explicit TopK(double density) : density_(density) {
    if (density <= 0 || density > 1) {
      throw brigade::ConfigError("topk: density is " + std::to_string(density) +
                                 ", expected more than 0 and at most 1");
    }
  }
  std::string name() const override { return "topk"; }
  std::string fingerprint() const override {
    return "topk:density=" + std::to_string(density_);
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor flat = bucket.buffer();
    std::vector<at::Tensor> views = bucket.gradients();
    for (size_t index = 0; index < views.size(); ++index) {
      const at::Tensor& error = errors_[bucket.names()[index]];
      if (error.defined()) views[index].add_(error);
    }
    const int64_t n = flat.numel();
    const int64_t k = std::min(n, 1 + static_cast<int64_t>(n * density_));
    at::Tensor places = std::get<1>(flat.abs().topk(k));
    at::Tensor values = flat.index_select(0, places);
    flat.index_fill_(0, places, 0).nan_to_num_(0, 0, 0);  // a NaN must not stay for ever
    for (size_t index = 0; index < views.size(); ++index)
      errors_[bucket.names()[index]] = views[index].clone();

    places = places.to(at::kInt);
    at::Tensor all_places = at::empty(comm.size() * k, places.options());
    at::Tensor all_values = at::empty(comm.size() * k, values.options());
    co_await comm.all_gather(places, all_places);
    co_await comm.all_gather(values, all_values);

    flat.zero_();
    for (int rank = 0; rank < comm.size(); ++rank) {  // in order: all ranks get equal bits
      flat.index_add_(0, all_places.narrow(0, rank * k, k),
                      all_values.narrow(0, rank * k, k), 1.0 / comm.size());
    }
    co_return flat;
  }

  brigade::HookState state() const override {
    brigade::HookState state;
    for (const auto& [name, error] : errors_)
      state.tensors[brigade::kErrorPrefix + name] = error.clone();
    return state;
  }
  void load_state(const brigade::HookState& state) override {
    errors_.clear();
    for (const auto& [key, tensor] : state.tensors)
      errors_[key.substr(std::string(brigade::kErrorPrefix).size())] = tensor.clone();
  }
  void reset() override { errors_.clear(); }

 private:
  const double density_;
  std::map<std::string, at::Tensor> errors_;  // by parameter: buckets are made anew
};

inline std::shared_ptr<brigade::Hook> make_hook(const std::string& name) {
  if (name == "mean") return brigade::make_hook(name, mean);
  if (name == "half") return brigade::make_hook(name, half);
  if (name == "scaled_half") return brigade::make_hook(name, scaled_half);
  if (name == "mixed") return brigade::make_hook(name, mixed);
  if (name == "topk") return std::make_shared<TopK>(0.1);
  return brigade::make_hook(name);  // one of the library's own
}

}  // namespace custom
