// One rank of a training job that compare.py times: a stack of Linear layers under DDP.
//
//   RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… step_bench layers=4 hook=fp16
//
// clang-format off
// optimizer=
//   sgd, adam                          torch's, after the backward pass
//   sgd_in_backward, adam_in_backward  brigade's, in the backward pass
//   adam_after                         brigade's, after the backward pass
// These spread the state of brigade's Adam over the ranks:
//   adam_zero                          the hook "zero"
//   adam_zero_interleaved              hook_with_zero_step_interleaved
//   adam_zero_last                     hook_with_zero_step
//   adam_zero_*_sharded                the two hooks above, with buckets divided
//   adam_zero_step                     step() after the backward pass
//   adam_zero_views                    the same, with parameters as bucket views
// clang-format on
// torch_step.py is the same in Python, with the same arguments except the optimizer, the
// same commands and the same answers. Reads one command a line from stdin, equal on all
// ranks, and answers each with one line of JSON:
//   turn N      trains N steps; seconds of every step and of its backward pass
//   verify      one pass against the exact mean of the ranks' gradients, or a step with it
//   hook SPEC   another hook from now on; "none": the Reducer's own all-reduce
#include <brigade/brigade.h>
#include <brigade/launch.h>
#include <malloc.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// "VmRSS" or "VmHWM" of this process, in KiB.
int64_t memory_kb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

struct Settings {
  std::map<std::string, std::string> values{
      {"layers", "3"}, {"width", "64"},  {"batch", "8"},      {"bucket_mb", "0"},
      {"views", "1"},  {"hook", "none"}, {"optimizer", "sgd"}};
  explicit Settings(int argc, char** argv) {
    for (int index = 1; index < argc; ++index) {
      const std::string word = argv[index];
      const size_t equals = word.find('=');
      if (equals == std::string::npos || !values.count(word.substr(0, equals))) {
        throw brigade::ConfigError("step_bench: unknown argument '" + word + "'");
      }
      values[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  int64_t number(const char* key) const { return std::stoll(values.at(key)); }
};

using Parameters = std::vector<at::Tensor>;
constexpr double kLr = 1e-4;
constexpr double kVisibleLr = 0.1;  // a step of it is more than the rounding of parameters

std::unique_ptr<torch::optim::Optimizer> torch_optimizer(const std::string& name,
                                                         const Parameters& parameters) {
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(parameters, kLr);
  if (name == "adam") return std::make_unique<torch::optim::Adam>(parameters, kLr);
  throw brigade::ConfigError("step_bench: unknown optimizer '" + name + "'");
}

torch::nn::Sequential make_model(const Settings& settings) {
  torch::manual_seed(1);
  torch::NoGradGuard no_grad;
  torch::nn::Sequential model;
  const int64_t width = settings.number("width");
  for (int64_t layer = 0; layer < settings.number("layers"); ++layer) {
    torch::nn::Linear linear(width, width);
    // Keeps the size of signals the same through any number of layers.
    linear->weight.normal_(0, 1 / std::sqrt(static_cast<double>(width)));
    model->push_back(linear);
  }
  return model;
}

class Trainer {
 public:
  explicit Trainer(const Settings& settings)
      : group_(brigade::init_process_group({.backend = "gloo"})),
        model_(make_model(settings)) {
    const int64_t width = settings.number("width");
    torch::manual_seed(100 + group_.rank());
    inputs_ = torch::randn({settings.number("batch"), width});
    torch::manual_seed(99);
    shared_row_ = torch::randn({1, width});
    bring_runtime_in();
    malloc_trim(0);
    base_kb_ = memory_kb("VmRSS");

    brigade::DdpOptions options{.gradient_as_bucket_view = settings.number("views") != 0};
    const double cap = std::stod(settings.values.at("bucket_mb"));
    if (cap > 0) options.bucket_cap_mb_list = {cap};
    ddp_ = brigade::DistributedDataParallel<torch::nn::SequentialImpl>(model_.ptr(), group_,
                                                                       options);
    make_optimizer(settings.values.at("optimizer"));
    hook(settings.values.at("hook"));
  }

  int64_t base_kb() const { return base_kb_; }

  void hook(const std::string& spec) {
    spec_ = spec;
    auto inner = spec == "none" ? nullptr : brigade::make_hook(spec);
    if (zero_ && sharded_) {
      if (!inner) inner = brigade::make_hook("allreduce");
      const bool sharded = zero_form_.ends_with("_sharded");
      inner = zero_form_.starts_with("last")
                  ? brigade::optim::hook_with_zero_step(inner, ddp_, zero_, sharded)
                  : brigade::optim::hook_with_zero_step_interleaved(inner, ddp_, zero_,
                                                                    sharded);
    }
    ddp_->set_hook(inner);
  }

  std::string turn(int64_t steps) {
    group_.barrier();
    forget_peak();
    std::ostringstream step_times, backward_times;
    for (int64_t step = 0; step < steps; ++step) {
      const auto begin = Clock::now();
      ddp_->zero_grad();
      at::Tensor error = loss(ddp_->forward(inputs_));
      const auto forward_end = Clock::now();
      error.backward();
      backward_times << (step ? "," : "") << seconds_since(forward_end);
      step_after();
      step_times << (step ? "," : "") << seconds_since(begin);
    }
    const int64_t peak = memory_kb("VmHWM");
    const auto traffic = ddp_->hook_stats().last_step;
    std::ostringstream text;
    text << "{\"step\":[" << step_times.str() << "],\"backward\":[" << backward_times.str()
         << "],\"peak_kb\":" << peak
         << ",\"buckets\":" << ddp_->logging_data().bucket_bytes.size()
         << ",\"stats\":{\"bytes_sent\":" << traffic.bytes_sent
         << ",\"collectives\":" << traffic.collectives
         << ",\"encode\":" << traffic.encode_seconds << ",\"wait\":" << traffic.wait_seconds
         << ",\"decode\":" << traffic.decode_seconds << ",\"overlap\":" << traffic.overlap()
         << "},\"replica\":\"" << fingerprint() << "\"}";
    return text.str();
  }

  // Returns the worst parameter's largest difference from the mean of all ranks' gradients,
  // as a share of the largest value. Each rank has one row, so a matrix's gradient has rank
  // 1 on each rank: PowerSGD of rank 2 must reproduce the mean of two, and with its rank 1
  // all ranks get the same row. With the optimizer in the backward pass it compares the
  // changes of the parameters.
  std::string verify() {
    const bool one_rank = spec_.rfind("powersgd:rank=1", 0) == 0;
    const at::Tensor row = one_rank ? shared_row_ : inputs_.narrow(0, 0, 1);
    for (int pass = 0; pass < 2; ++pass) gradients_of(row);
    Parameters exact = exact_mean(row);
    const Parameters before = copies(ddp_->parameters());
    if (steps_itself()) {
      set_lr(kVisibleLr);
      exact = changes_by(exact);
    }
    gradients_of(row);
    double worst = 0;
    const auto parameters = ddp_->parameters();
    for (size_t index = 0; index < parameters.size(); ++index) {
      const at::Tensor found =
          steps_itself() ? parameters[index] - before[index] : parameters[index].grad();
      const at::Tensor off = (found.to(at::kDouble) - exact[index]).abs();
      const double share = (off.max() / exact[index].abs().max()).item<double>();
      worst = std::isnan(share) ? 1e9 : std::max(worst, share);
    }
    ddp_->zero_grad();
    if (steps_itself()) undo(before);
    std::ostringstream text;
    text << "{\"error\":" << worst << "}";
    return text.str();
  }

 private:
  void make_optimizer(const std::string& name) {
    namespace bo = brigade::optim;
    const size_t place = name.find("_in_backward");
    if (name == "adam_after") {
      after_ = bo::make_optimizer("adam");
      after_->set_lr(kLr);
      return;
    }
    if (name == "adam_zero") {
      sharded_ = bo::apply_zero_in_backward(ddp_, "adam");
      sharded_->set_lr(kLr);
      return;
    }
    if (name.starts_with("adam_zero_")) {
      zero_form_ = name.substr(10);
      const bool views = zero_form_ == "views";
      zero_ = std::make_shared<bo::ZeroRedundancyOptimizer>(
          ddp_, "adam", bo::ZeroOptions{.parameters_as_bucket_view = views});
      zero_->set_lr(kLr);
      if (zero_form_ != "step" && !views) sharded_ = zero_;
      return;
    }
    if (place == std::string::npos) {
      optimizer_ = torch_optimizer(name, ddp_->parameters());
      return;
    }
    in_backward_ = brigade::optim::make_optimizer(name.substr(0, place));
    in_backward_->set_lr(kLr);
    brigade::optim::apply_optimizer_in_backward(ddp_, in_backward_);
  }
  // Whether the optimizer steps in the backward pass.
  bool steps_itself() const { return in_backward_ || sharded_; }
  void set_lr(double lr) {
    if (in_backward_) in_backward_->set_lr(lr);
    if (sharded_) sharded_->set_lr(lr);
  }
  void step_after() {
    if (optimizer_) optimizer_->step();
    if (zero_ && !sharded_) zero_->step();
    if (!after_) return;
    for (const at::Tensor& parameter : ddp_->parameters())
      after_->step_param(parameter, parameter.grad());
  }
  // The optimizer's state, by the numbers of the parameters.
  brigade::optim::OptimizerState state_of(const brigade::optim::NamedParameters& named) {
    if (in_backward_) return in_backward_->state(named);
    brigade::optim::OptimizerState whole, by_number;
    for (int rank = 0; rank < group_.size(); ++rank) {
      auto found = sharded_->consolidate(rank);
      if (rank == group_.rank()) whole = std::move(found);
    }
    const auto& names = ddp_->core().parameter_names();
    const auto renamed = [&](const std::string& key) {
      for (size_t index = 0; index < names.size(); ++index) {
        const std::string prefix = "group.0/" + names[index] + ".";
        if (key.starts_with(prefix))
          return named[index].first + "." + key.substr(prefix.size());
      }
      return key.substr(std::string("group.0/").size());
    };
    for (const auto& [key, tensor] : whole.tensors)
      by_number.tensors[renamed(key)] = tensor;
    for (const auto& [key, value] : whole.values) by_number.values[renamed(key)] = value;
    return by_number;
  }
  static Parameters copies(const Parameters& parameters) {
    Parameters copies;
    for (const at::Tensor& each : parameters) copies.push_back(each.detach().clone());
    return copies;
  }
  void undo(const Parameters& before) {
    torch::NoGradGuard no_grad;
    set_lr(kLr);
    const auto parameters = ddp_->parameters();
    for (size_t index = 0; index < before.size(); ++index)
      parameters[index].copy_(before[index]);
  }
  Parameters exact_mean(const at::Tensor& row) {
    auto guard = ddp_->no_sync();
    gradients_of(row);
    Parameters exact;
    for (const at::Tensor& parameter : ddp_->parameters()) {
      exact.push_back(parameter.grad().to(at::kDouble));
      group_.all_reduce(exact.back());
      exact.back().div_(group_.size());
    }
    return exact;
  }
  // The changes that a step with these gradients makes to the parameters, in float64, with
  // ATen's operations. A second optimizer makes them, from the state of the first.
  Parameters changes_by(const Parameters& gradients) {
    const auto parameters = ddp_->parameters();
    brigade::optim::NamedParameters named, named_copies;
    for (size_t index = 0; index < parameters.size(); ++index) {
      const std::string name = std::to_string(index);
      named.emplace_back(name, parameters[index]);
      named_copies.emplace_back(name, parameters[index].detach().to(at::kDouble));
    }
    auto state = state_of(named);
    for (auto& [key, tensor] : state.tensors) tensor = tensor.to(at::kDouble);
    const auto second =
        brigade::optim::make_optimizer(in_backward_ ? in_backward_->name() : "adam");
    second->load_state(state, named_copies);
    Parameters changes;
    for (size_t index = 0; index < parameters.size(); ++index) {
      const at::Tensor& copy = named_copies[index].second;
      second->step_param(copy, gradients[index]);
      changes.push_back(copy - parameters[index].detach());
    }
    return changes;
  }
  // Loads code and fills pools first, because training does not pay for them again.
  void bring_runtime_in() {
    brigade::DistributedDataParallel small(torch::nn::Linear(8, 8), group_);
    torch::optim::SGD optimizer(small->parameters(), 0);
    for (int step = 0; step < 3; ++step) {
      small->zero_grad();
      loss(small->forward(torch::ones({8, 8}))).backward();
      optimizer.step();
    }
    loss(model_->forward(inputs_)).backward();
    brigade::zero_grad(model_->parameters());
  }
  static at::Tensor loss(const at::Tensor& output) { return output.square().mean(); }
  void gradients_of(const at::Tensor& rows) {
    ddp_->zero_grad();
    loss(ddp_->forward(rows)).backward();
  }
  // Equal only if the bits of the parameters are.
  int64_t fingerprint() const {
    torch::NoGradGuard no_grad;
    int64_t hash = 0;
    for (const at::Tensor& parameter : ddp_->parameters()) {
      hash = hash * 31 + parameter.detach().view(at::kInt).sum().item<int64_t>();
    }
    return hash & 0x7fffffffffffffff;
  }

  brigade::ProcessGroup group_;
  torch::nn::Sequential model_;
  brigade::DistributedDataParallel<torch::nn::SequentialImpl> ddp_{nullptr};
  // Only one of these is set.
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<brigade::optim::Optimizer> in_backward_;
  std::shared_ptr<brigade::optim::Optimizer> after_;
  std::shared_ptr<brigade::optim::ShardedOptimizer> sharded_;  // in the backward pass
  std::shared_ptr<brigade::optim::ZeroRedundancyOptimizer> zero_;
  std::string zero_form_;
  std::string spec_;
  at::Tensor inputs_;
  at::Tensor shared_row_;
  int64_t base_kb_ = 0;
};

void serve(Trainer& trainer) {
  std::cout << "{\"base_kb\":" << trainer.base_kb() << "}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, argument;
    words >> command >> argument;
    if (command == "turn") {
      std::cout << trainer.turn(std::stoll(argument)) << std::endl;
    } else if (command == "verify") {
      std::cout << trainer.verify() << std::endl;
    } else if (command == "hook") {
      trainer.hook(argument);
      std::cout << "{}" << std::endl;
    } else {
      throw brigade::ConfigError("step_bench: unknown command '" + line + "'");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return brigade::record_errors([&] {
    Trainer trainer{Settings(argc, argv)};
    serve(trainer);
  });
}
