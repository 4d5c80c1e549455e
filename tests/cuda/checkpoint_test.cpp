// A checkpoint of one device loads on the other.
#include "brigade/checkpoint.h"

#include <torch/optim/adam.h>

#include "cuda/on_gpu.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

const Shapes kRunShapes{{64, 64}, {700}, {40, 30}};

// Gradients are given, so they are equal on both devices; int8 sends the same bytes.
class TrainingRun {
 public:
  TrainingRun(const ProcessGroup& group, const std::string& folder, at::Device device)
      : group_(group),
        device_(device),
        bag_(std::make_shared<BagImpl>(kRunShapes, at::kFloat)),
        ddp_(moved(), group, options(folder)),
        adam_(bag_->parameters(), 0.05) {
    ddp_->set_hook(make_hook("int8"));
    step_ = load_checkpoint(folder, group, parts()).value_or(0);
  }

  void train(int64_t steps) {
    for (const int64_t end = step_ + steps; step_ < end; ++step_) {
      std::vector<at::Tensor> inputs;
      for (const at::Tensor& each : coefficients_on_gpu(kRunShapes, group_.rank(), step_))
        inputs.push_back(each.to(device_));
      ddp_->zero_grad();
      ddp_->forward(inputs).backward();
      adam_.step();
    }
  }
  void save(const std::string& folder) { save_checkpoint(folder, step_, group_, parts()); }
  int64_t step() const { return step_; }

  // Weights, moments and int8's residuals, on the CPU.
  std::map<std::string, at::Tensor> everything() {
    std::map<std::string, at::Tensor> all;
    for (const CheckpointPart& part : parts())
      for (const auto& [name, tensor] : part.save().tensors)
        all[part.name + "/" + name] = tensor.detach().to(at::kCPU, at::kDouble);
    return all;
  }

 private:
  std::shared_ptr<BagImpl> moved() const {
    bag_->to(device_);
    return bag_;
  }
  static DdpOptions options(const std::string& folder) {
    DdpOptions options{.bucket_cap_mb = kOneBucketEach};
    if (const auto saved = find_checkpoint(folder)) options.first_buckets = saved->buckets;
    return options;
  }
  std::vector<CheckpointPart> parts() {
    return {model_part(*bag_), optimizer_part(adam_, *bag_), hook_part(ddp_->core()),
            bucket_part(ddp_->core())};
  }

  const ProcessGroup group_;
  const at::Device device_;
  const std::shared_ptr<BagImpl> bag_;
  BagDdp ddp_;
  torch::optim::Adam adam_;
  int64_t step_ = 0;
};

class CudaCheckpoint : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(From, CudaCheckpoint, ::testing::Values("cuda", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaCheckpoint, OfOneDeviceGoesOnOnTheOther) {
  const TemporaryFolder folder;
  run_cuda_ranks("gloo", [&](ProcessGroup group) {
    const at::Device from = std::string(GetParam()) == "cuda" ? kGpu : at::Device(at::kCPU);
    const at::Device to = from.is_cuda() ? at::Device(at::kCPU) : kGpu;
    TrainingRun first(group, folder.path(), from);
    first.train(3);
    first.save(folder.path());
    first.train(2);
    TrainingRun second(group, folder.path(), to);
    EXPECT_EQ(second.step(), 3);
    second.train(2);
    const auto expected = first.everything(), got = second.everything();
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_GT(got.size(), 3 * kRunShapes.size());  // weights, two moments, residuals
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_TRUE(at::allclose(got.at(name), tensor, 1e-5, 1e-6)) << name;
    }
  });
}

}  // namespace
}  // namespace brigade::testing
