// ZeRO on CUDA tensors, over NCCL and over Gloo: each form trains as the same optimizer on
// every rank does.
#include "cuda/on_gpu.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

// One parameter would be sent in place on the host, some are small, and one has fewer
// elements than there are ranks.
const Shapes kShapes{{1024, 601}, {700}, {40, 31}, {1}, {128, 33}};
constexpr const char* kAdam = "adam:lr=0.1,weight_decay=0.01";

enum class Form { plain, step, step_views, after_last, interleaved, reduce_scatter };
constexpr const char* kNames[] = {"plain",      "step",        "step with views",
                                  "after last", "interleaved", "reduce-scatter"};

struct Setting {
  Form form;
  bool shard_buckets = false;
  bool views = false;
};

// A model in training.
class Job {
 public:
  Job(const ProcessGroup& group, const Setting& setting)
      : form_(setting.form),
        bag_(bag_on_gpu(kShapes, at::kFloat)),
        ddp_(bag_, group,
             {.bucket_cap_mb = kOneBucketEach, .gradient_as_bucket_view = setting.views}) {
    if (form_ == Form::reduce_scatter) {
      hook_ = apply_zero_in_backward(ddp_, kAdam);
      return;
    }
    const auto inner = make_hook("allreduce");
    ddp_->set_hook(inner);
    if (form_ == Form::plain) {
      plain_ = make_optimizer(kAdam);
      return;
    }
    zero_ = std::make_shared<ZeroRedundancyOptimizer>(
        ddp_, kAdam, ZeroOptions{.parameters_as_bucket_view = form_ == Form::step_views});
    if (form_ == Form::after_last)
      ddp_->set_hook(hook_with_zero_step(inner, ddp_, zero_, setting.shard_buckets));
    if (form_ == Form::interleaved)
      ddp_->set_hook(
          hook_with_zero_step_interleaved(inner, ddp_, zero_, setting.shard_buckets));
  }

  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      ddp_->zero_grad();
      ddp_->forward(coefficients_on_gpu(kShapes, ddp_->group().rank(), step)).backward();
      if (form_ == Form::step || form_ == Form::step_views) zero_->step();
      for (const at::Tensor& parameter : parameters()) {
        EXPECT_EQ(parameter.grad().defined(), form_ != Form::reduce_scatter);
        if (plain_) plain_->step_param(parameter, parameter.grad());
      }
    }
  }
  const std::vector<at::Tensor>& parameters() const { return bag_->parameters_in_order; }
  ShardedOptimizer& sharded() {
    if (hook_) return *hook_;
    return *zero_;
  }

 private:
  const Form form_;
  std::shared_ptr<BagImpl> bag_;
  BagDdp ddp_;
  std::shared_ptr<Optimizer> plain_;
  std::shared_ptr<ZeroRedundancyOptimizer> zero_;
  std::shared_ptr<ZeroHook> hook_;
};

// Replicas are equal to the last bit; the two runs nearly so, because a device may round a
// shard's step and that of the whole parameter differently.
void expect_same(const ProcessGroup& group, const std::vector<at::Tensor>& got,
                 const std::vector<at::Tensor>& expected) {
  for (size_t index = 0; index < got.size(); ++index) {
    const at::Tensor mine = got[index].detach();
    at::Tensor root = mine.clone();
    group.broadcast(root, 0);
    EXPECT_TRUE(at::equal(root, mine)) << "replicas differ in parameter " << index;
    EXPECT_LE((mine - expected[index].detach()).abs().max().item<double>(), 1e-5)
        << "parameter " << index;
  }
}

class CudaZero : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, CudaZero, ::testing::Values("nccl", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaZero, EveryFormTrainsLikeTheOptimizerOnEveryRank) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    for (const bool views : {false, true}) {
      Job plain(group, {Form::plain, false, views});
      plain.train(0, 6);
      for (const Form form : {Form::step, Form::step_views, Form::after_last,
                              Form::interleaved, Form::reduce_scatter}) {
        for (const bool sharded : {false, true}) {
          const bool in_hook = form == Form::after_last || form == Form::interleaved;
          if (sharded && !in_hook) continue;
          SCOPED_TRACE(std::string(kNames[static_cast<int>(form)]) +
                       (sharded ? ", buckets sharded" : "") + (views ? ", views" : ""));
          Job zero(group, {form, sharded, views});
          zero.train(0, 6);
          expect_same(group, zero.parameters(), plain.parameters());
          EXPECT_GT(zero.parameters()[0].abs().max().item<double>(), 0.1) << "has moved";
        }
      }
    }
  });
}

TEST_P(CudaZero, OneFormGoesOnFromTheStateOfAnother) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    const Form forms[] = {Form::step, Form::interleaved, Form::reduce_scatter};
    for (const Form from : forms) {
      Job first(group, {from});
      first.train(0, 3);
      OptimizerState whole;
      for (int rank = 0; rank < group.size(); ++rank) {
        OptimizerState mine = first.sharded().consolidate(rank);
        if (rank == group.rank()) whole = std::move(mine);
      }
      EXPECT_FALSE(whole.tensors.empty());
      for (const auto& [key, tensor] : whole.tensors) EXPECT_TRUE(tensor.is_cpu()) << key;
      std::vector<at::Tensor> saved;
      for (const at::Tensor& parameter : first.parameters())
        saved.push_back(parameter.detach().clone());
      first.train(3, 5);
      for (const Form to : forms) {
        SCOPED_TRACE(std::string(kNames[static_cast<int>(from)]) + " to " +
                     kNames[static_cast<int>(to)]);
        Job second(group, {to});
        {
          at::NoGradGuard no_grad;
          for (size_t index = 0; index < saved.size(); ++index)
            at::Tensor(second.parameters()[index]).copy_(saved[index]);
        }
        second.sharded().load_consolidated(whole);
        second.train(3, 5);
        expect_same(group, second.parameters(), first.parameters());
      }
    }
  });
}

TEST_P(CudaZero, EachRankKeepsItsShareOfTheState) {
  run_cuda_ranks(GetParam(), [](ProcessGroup group) {
    int64_t whole = 0;  // two moments of every parameter
    for (const auto& shape : kShapes) {
      int64_t elements = 1;
      for (const int64_t size : shape) elements *= size;
      whole += 2 * 4 * elements;
    }
    Job zero(group, {Form::reduce_scatter});
    zero.train(0, 2);
    EXPECT_LE(static_cast<double>(zero.sharded().state_bytes()),
              (1.0 / group.size() + 0.05) * static_cast<double>(whole));
    EXPECT_GT(zero.sharded().state_bytes(), 0);
  });
}

}  // namespace
}  // namespace brigade::testing
