#include "selftest/hook_check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cinttypes>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/exception_text.h"
#include "brigade/distributed_data_parallel.h"
#include "brigade/hooks.h"
#include "common/fingerprint.h"

namespace brigade::tool {
namespace {

using nlohmann::json;
using Shape = std::vector<std::int64_t>;

constexpr int kSteps = 4;
// Full and odd sizes, a single number, a vector. They are square for low rank, so that a
// whole bucket taken as a square has the rank of its parameter.
const std::vector<Shape> kShapes{{96, 64}, {64},      {33, 17}, {1},
                                 {5000},   {120, 40}, {7, 3, 5}};
const std::vector<Shape> kSquares{{64, 64}, {256}, {40, 40}, {100, 100}, {900}, {24, 24}};

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape)
    text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

// forward(c) = sum of p[i] * c[i]: the gradient of p[i] is c[i].
struct BagImpl : torch::nn::Module {
  BagImpl(const std::vector<Shape>& shapes, c10::Device device) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      parameters_in_order.push_back(register_parameter(
          "p" + std::to_string(i), at::zeros(shapes[i], at::kFloat).to(device)));
    }
  }
  at::Tensor forward(const std::vector<at::Tensor>& coefficients) {
    std::vector<at::Tensor> terms;
    for (size_t i = 0; i < coefficients.size(); ++i)
      terms.push_back((parameters_in_order[i] * coefficients[i]).sum());
    return at::stack(terms).sum();
  }
  std::vector<at::Tensor> parameters_in_order;
};

at::Tensor random(const Shape& shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kFloat));
}

// A rank's input, which all ranks know, so that each can work out the exact mean.
at::Tensor gradient(const HookCheck& check, const Shape& shape, int rank, int step,
                    size_t index) {
  const auto place =
      static_cast<std::uint64_t>(rank) * 1000 + static_cast<std::uint64_t>(step);
  if (!check.low_rank) return random(shape, place * 100 + index);
  const std::int64_t side = std::llround(std::sqrt(c10::multiply_integers(shape)));
  const at::Tensor left = random({side, 2}, 1'000'000 + index);
  const at::Tensor right = random({2, side}, 2'000'000 + index);
  const at::Tensor weights = random({2}, 3'000'000 + place).abs().add(0.5);
  return at::matmul(left * weights, right).view(shape);
}

class Trial {
 public:
  Trial(const Worker& worker, const HookCheck& check)
      : worker_(worker),
        check_(check),
        shapes_(check.low_rank ? kSquares : kShapes),
        bag_(std::make_shared<BagImpl>(shapes_, worker.device)),
        ddp_(bag_, worker.group, options()) {
    ddp_->set_hook(check.make());
  }

  // Returns the first thing that is wrong on this rank, or nothing.
  std::string run() {
    std::string wrong;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<at::Tensor> inputs;
      for (size_t i = 0; i < shapes_.size(); ++i)
        inputs.push_back(
            gradient(check_, shapes_[i], worker_.group.rank(), step, i).to(worker_.device));
      ddp_->zero_grad();
      ddp_->forward(inputs).backward();
      for (size_t i = 0; i < shapes_.size(); ++i) {
        const std::string found = judge(step, i);
        if (wrong.empty()) wrong = found;
      }
    }
    return wrong;
  }

  double error() const { return error_; }
  const std::vector<std::string>& digests() const { return digests_; }
  // Says which step and parameter digest number `index` belongs to.
  std::string place(size_t index) const {
    return place(static_cast<int>(index / shapes_.size()), index % shapes_.size());
  }
  int buckets() const { return static_cast<int>(ddp_->logging_data().bucket_bytes.size()); }
  double sent() const {
    const HookTraffic total = ddp_->hook_stats().total;
    return total.bytes_before > 0 ? static_cast<double>(total.bytes_sent) /
                                        static_cast<double>(total.bytes_before)
                                  : 0;
  }

 private:
  // Every parameter gets its own bucket, from the first step on.
  DdpOptions options() const {
    DdpOptions options{.bucket_cap_mb = 1e-6};
    for (size_t i = 0; i < shapes_.size(); ++i)
      options.first_buckets.push_back({"p" + std::to_string(i)});
    return options;
  }

  std::string place(int step, size_t index) const {
    return "step " + std::to_string(step) + ", bucket of parameter p" +
           std::to_string(index) + " (" + text_of(shapes_[index]) + ")";
  }

  std::string judge(int step, size_t index) {
    const at::Tensor result = bag_->parameters_in_order[index].grad().cpu();
    const auto input = [&](int rank) {
      return gradient(check_, shapes_[index], rank, step, index);
    };
    if (check_.tolerance < 0) {
      if (at::equal(result, input(worker_.group.rank()))) return "";
      return place(step, index) + ": the rank's own gradient came back changed";
    }
    digests_.push_back(fingerprint({result}));
    if (!at::isfinite(result).all().item<bool>())
      return place(step, index) + ": values that are not finite came out";
    at::Tensor mean = at::zeros(shapes_[index], at::kDouble);
    double size = 0;
    for (int rank = 0; rank < worker_.group.size(); ++rank) {
      const at::Tensor theirs = input(rank).to(at::kDouble);
      mean += theirs / worker_.group.size();
      size += theirs.pow(2).sum().item<double>() / worker_.group.size();
    }
    const at::Tensor off = result.to(at::kDouble) - mean;
    const double error = off.norm().item<double>() / std::sqrt(size);
    error_ = std::max(error_, error);
    if (error <= check_.tolerance) return "";
    return place(step, index) + ": " + describe(result, mean, off, error);
  }

  std::string describe(const at::Tensor& result, const at::Tensor& mean,
                       const at::Tensor& off, double error) const {
    const auto worst = off.flatten().abs().argmax().item<std::int64_t>();
    char text[200];
    std::snprintf(text, sizeof text,
                  "relative error %.2g, allowed %.2g; worst at element %" PRId64
                  ": got %g, the exact mean is %g",
                  error, check_.tolerance, worst, result.flatten()[worst].item<double>(),
                  mean.flatten()[worst].item<double>());
    return text;
  }

  const Worker& worker_;
  const HookCheck& check_;
  std::vector<Shape> shapes_;
  std::shared_ptr<BagImpl> bag_;
  DistributedDataParallel<BagImpl> ddp_;
  double error_ = 0;
  std::vector<std::string> digests_;  // one for each step and parameter
};

// This rank's result as text that the others can read.
json run_trial(const Worker& worker, const HookCheck& check) {
  json mine = {{"failure", ""}, {"error", 0.0}, {"digests", json::array()},
               {"buckets", 0},  {"sent", 0.0},  {"places", json::array()}};
  try {
    // Own connections: a hook that breaks them breaks no other check.
    const Worker own{worker.group.duplicate(), worker.device};
    Trial trial(own, check);
    mine["failure"] = trial.run();
    mine["error"] = trial.error();
    mine["digests"] = trial.digests();
    mine["buckets"] = trial.buckets();
    mine["sent"] = trial.sent();
    for (size_t i = 0; i < trial.digests().size(); ++i)
      mine["places"].push_back(trial.place(i));
  } catch (const std::exception& error) {
    mine["failure"] = base::text_of(error);
  }
  return mine;
}

// The first failure of any rank; if no rank has one, the first difference between ranks.
std::string judge_all(const std::vector<json>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank]["failure"];
    if (!failure.empty()) return "rank " + std::to_string(rank) + ": " + failure;
  }
  const json& first = all[0]["digests"];
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < first.size(); ++i) {
      if (all[rank]["digests"][i] == first[i]) continue;
      return "rank " + std::to_string(rank) + ": " +
             all[0]["places"][i].get<std::string>() +
             ": its gradient differs from rank 0's";
    }
  }
  return "";
}

}  // namespace

std::vector<HookCheck> hook_checks() {
  std::vector<HookCheck> checks;
  const auto add = [&](const std::string& spec, double tolerance, bool low_rank = false) {
    checks.push_back({spec, [spec] { return make_hook(spec); }, tolerance, low_rank});
  };
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    if (std::ranges::count(entry.options, "ratio") > 0) {
      add(name + ":ratio=1", 1e-5);  // all values: exact
      continue;
    }
    const bool low_rank = std::ranges::count(entry.options, "rank") > 0;
    if (!low_rank) {
      add(name, entry.tolerance);
      continue;
    }
    add(name + ":rank=2,start=0", 1e-3, true);
    add(name, 1e-5);  // exact until it starts
  }
  add("fp16+allreduce", 2e-3);
  add("bf16+allreduce", 1.6e-2);
  add("fp16+int8", 1.5e-2);
  return checks;
}

HookCheckResult check_hook(const Worker& worker, const HookCheck& check) {
  const auto begin = std::chrono::steady_clock::now();
  const json mine = run_trial(worker, check);
  std::vector<json> all;
  for (const std::string& text : worker.group.gather_texts(
           "the check of " + check.name,
           mine.dump(-1, ' ', false, json::error_handler_t::replace))) {
    all.push_back(json::parse(text));
  }
  HookCheckResult result{.name = check.name,
                         .failure = judge_all(all),
                         .tolerance = check.tolerance,
                         .buckets = all[0]["buckets"],
                         .steps = kSteps,
                         .sent = all[0]["sent"]};
  for (const json& one : all)
    result.error = std::max(result.error, one["error"].get<double>());
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace brigade::tool
