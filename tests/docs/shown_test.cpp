// Programs that the pages show, compiled with warnings as errors, as some users do.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <cstdio>

#include "brigade/brigade.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::shown {

at::Device device_of_this_worker(const brigade::ProcessGroup& group) {
  if (!torch::cuda::is_available()) return at::kCPU;
  const auto count = static_cast<int>(torch::cuda::device_count());
  return {at::kCUDA, static_cast<at::DeviceIndex>(group.local_rank() % count)};
}

volatile std::sig_atomic_t asked_to_stop = 0;

void train_until_asked_to_stop(const brigade::ProcessGroup& group, int64_t steps,
                               std::span<const brigade::CheckpointPart> parts,
                               const std::function<void(int64_t)>& train_step) {
  std::signal(SIGTERM, [](int /*signal*/) { asked_to_stop = 1; });
  int64_t step = brigade::load_checkpoint("run", group, parts).value_or(0);
  while (step < steps) {
    train_step(step);
    ++step;
    const bool stop = group.any(asked_to_stop != 0);  // one small collective a step
    if (stop || step % 500 == 0 || step == steps)
      brigade::save_checkpoint("run", step, group, parts);
    if (stop) return;
  }
}

using Rows = brigade::DataLoader<at::Tensor>;

Rows rows_of(const at::Tensor& data, const brigade::ProcessGroup& group) {
  return Rows(
      brigade::DistributedSampler(static_cast<size_t>(data.size(0)), group, {.seed = 1}),
      [data](const brigade::BatchRequest& wanted) {
        std::vector<int64_t> indices(wanted.indices.begin(), wanted.indices.end());
        return data.index_select(0, torch::tensor(indices));
      },
      {.batch_size = 4, .prefetch = 2});
}

const brigade::DdpOptions small_first{.bucket_cap_mb_list = {1, 4, 25},
                                      .gradient_as_bucket_view = true};

// Blocks of pages, unchanged: not indented, and with their own includes.
struct PageBatch {
  at::Tensor data, target;
};
using Net = torch::nn::Linear;
constexpr auto loss = [](const at::Tensor& scores, const at::Tensor& target) {
  return torch::mse_loss(scores, target);
};

// clang-format off
void checkpoints_page(Net net, const brigade::ProcessGroup& group, size_t dataset_size,
                      int64_t steps, const std::function<void(int64_t)>& train) {
#include <brigade/checkpoint.h>

brigade::DdpOptions options;
if (auto saved = brigade::find_checkpoint("run")) options.first_buckets = saved->buckets;
brigade::DistributedDataParallel ddp(net, group, options);
ddp->set_hook(brigade::make_hook("powersgd:rank=2"));
torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
brigade::DistributedSampler sampler(dataset_size, group);

const std::vector<brigade::CheckpointPart> parts{
    brigade::model_part(*net),
    brigade::optimizer_part(optimizer, *net),
    brigade::hook_part(ddp->core()),
    brigade::bucket_part(ddp->core()),
    brigade::sampler_part(sampler),
    brigade::random_part()};

int64_t step = brigade::load_checkpoint("run", group, parts).value_or(0);
for (; step < steps; ++step) {
  train(step);
  if ((step + 1) % 100 == 0) brigade::save_checkpoint("run", step + 1, group, parts);
}
}

brigade::CheckpointPart checkpoints_page_part(int& epoch) {
brigade::CheckpointPart part{.name = "schedule"};
part.save = [&] { return brigade::PartState{.values = {{"epoch", std::to_string(epoch)}}}; };
part.load = [&](brigade::SavedPart saved) {
  const int loaded = std::stoi(saved.states.at(0).values.at("epoch"));
  return [&epoch, loaded] { epoch = loaded; };
};
return part;
}

void mixed_precision_page(Net net, const brigade::ProcessGroup& group, std::vector<PageBatch> loader) {
#include <brigade/brigade.h>

brigade::DistributedDataParallel ddp(net, group, {.mixed_precision = brigade::MixedPrecision{.param_dtype = at::kBFloat16}});
torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
for (auto& batch : loader) {
  ddp->zero_grad();
  auto scores = ddp->forward(batch.data);  // bf16: arguments are cast, too
  loss(scores.to(at::kFloat), batch.target).backward();
  optimizer.step();  // fp32 parameters, fp32 gradients
}
}

void grad_scaler_page(Net net, const brigade::ProcessGroup& group, std::vector<PageBatch> loader) {
brigade::DistributedDataParallel ddp(net, group);
torch::optim::AdamW optimizer(ddp->parameters(), 1e-3);
#include <brigade/optimizer_in_backward.h>

brigade::GradScaler scaler({}, group);
for (auto& batch : loader) {
  ddp->zero_grad();
  auto scores = ddp->forward(batch.data);
  scaler.scale(loss(scores.to(at::kFloat), batch.target)).backward();
  scaler.unscale_(optimizer);  // only where gradients are clipped or looked at
  torch::nn::utils::clip_grad_norm_(ddp->parameters(), 1.0);
  scaler.step(optimizer);
  scaler.update();
}
}
void troubleshooting_page(const at::Tensor& loss) {
try {
  loss.backward();
} catch (const brigade::PeerLostError& error) {  // without a hook
  std::fprintf(stderr, "lost rank %d\n", error.rank().value_or(-1));
} catch (const brigade::HookError& error) {  // with one: all ranks get the same text, kind and rank
  if (error.kind() == brigade::Failure::other) throw;  // an exception of the hook itself
}
}

namespace launching {
int trained = 0;
void train() { ++trained; }
void train(const brigade::ProcessGroup& group) { trained += group.size(); }

void launching_page() {
#include <brigade/launch.h>

brigade::launch(4, [](int /*rank*/) {
  auto group = brigade::init_process_group();
  train(group);
});
}

int main() {
  return brigade::record_errors([] { train(); });
}
}  // namespace launching
// clang-format on

namespace {

using testing::run_ranks;

TEST(ShownCode, AWorkerThatIsAskedToStopSavesAndTheNextRunGoesOn) {
  const testing::TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    ASSERT_EQ(chdir(folder.path().c_str()), 0);
    PartState mine;
    const std::vector<CheckpointPart> parts{user_part(mine)};
    std::vector<int64_t> done;
    const auto run = [&](int64_t stop_at) {
      train_until_asked_to_stop(group, 9, parts, [&](int64_t step) {
        done.push_back(step);
        // The signal reaches only one of them.
        if (step == stop_at && group.rank() == 1) std::raise(SIGTERM);
      });
    };
    run(3);
    EXPECT_EQ(done, (std::vector<int64_t>{0, 1, 2, 3}));
    asked_to_stop = 0;
    run(-1);
    EXPECT_EQ(done, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(device_of_this_worker(group).is_cpu(), !torch::cuda::is_available());
  });
}

TEST(ShownCode, RowsComeOnceAnEpoch) {
  run_ranks(2, [](ProcessGroup group) {
    const auto data = torch::arange(20).to(torch::kFloat).view({10, 2});
    Rows rows = rows_of(data, group);
    at::Tensor sum = torch::zeros({1}, torch::kDouble);
    while (auto batch = rows.next()) sum += batch->sum().to(torch::kDouble);
    group.all_reduce(sum);
    EXPECT_EQ(sum.item<double>(), 190);
    DistributedDataParallel ddp(torch::nn::Linear(2, 1), group, small_first);
    EXPECT_TRUE(ddp->core().options().gradient_as_bucket_view);
  });
}

// This file is compiled with -Wmissing-field-initializers; members may be left out because
// each has a default.
TEST(Pages, InitializersMayNameTheFirstMemberOnly) {
  const LaunchOptions launching{.nodes = 2};
  const ElasticJobOptions job{.backend = "gloo"};
  const ElasticEvent event{.generation = 1};
  const AveragingLevel level{.period = 3};
  const TraceEvent stretch{.kind = TraceEvent::Kind::collective};
  const report::StepPoint point{.step = 4};
  const report::GenerationMark mark{.step = 5};
  const report::Series series{.hook = "int8"};
  const report::Table table{.title = "errors"};
  const report::RunRecord record{.title = "a run"};
  EXPECT_TRUE(launching.log_dir.empty() && !job.timeout && event.why.empty());
  EXPECT_TRUE(level.group_size == 1 && stretch.ready == stretch.end && !point.accuracy);
  EXPECT_TRUE(mark.why.empty() && series.points.empty() && table.rows.empty() &&
              record.series.empty());
}

TEST(Pages, ProgramsOfOtherPagesTrain) {
  launching::launching_page();
  EXPECT_EQ(launching::main(), 0);
  EXPECT_EQ(launching::trained, 1) << "the workers' own count is theirs";
  const testing::TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    ASSERT_EQ(chdir(folder.path().c_str()), 0);
    const std::vector<PageBatch> batches(3, {torch::ones({4, 3}), torch::ones({4, 2})});
    int64_t last = 0;
    checkpoints_page(Net(3, 2), group, 10, 200, [&](int64_t step) { last = step; });
    EXPECT_EQ(last, 199);
    EXPECT_EQ(find_checkpoint("run")->step, 200);
    mixed_precision_page(Net(3, 2), group, batches);
    grad_scaler_page(Net(3, 2), group, batches);
    const at::Tensor weight = torch::ones({2}, torch::requires_grad());
    troubleshooting_page(weight.sum());
    EXPECT_TRUE(at::equal(weight.grad(), torch::ones({2})));
    int epoch = 7;
    EXPECT_EQ(checkpoints_page_part(epoch).save().values.at("epoch"), "7");
  });
}

}  // namespace
}  // namespace brigade::shown
