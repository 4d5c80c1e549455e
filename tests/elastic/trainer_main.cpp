// A small elastic training for the tests and the soak: counts how often each sample was
// trained, in its parameters and in ledgers, and kills itself if told to.
//
//   elastic_trainer FOLDER key=value …
//   cost=ROUNDS, transfer=MB  measure instead, see cost.h
//   late=N misfit=N, see below
//   end_file=1   ends some steps after there is a file FOLDER/end
//   apart=PERIOD with DiLoCo's outer step if outer=1
//   checkpoint=N after every N steps, in FOLDER/checkpoint
//   device=cuda  over NCCL
//   hook=clumsy  the mean; throws at the appointments at=hook:STEP:RANK
//   hook=NAME samples=N batch=N epochs=N  kills=N  mean_ms=N  at=WHERE:STEP:RANK pause_ms=N
//   optimizer=adamw mixed=bf16 scaler=1 accumulate=PASSES views=1
#include <dlfcn.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "brigade/brigade.h"
#include "elastic/cost.h"
#include "elastic/ledger.h"
#include "elastic/reaper.h"
#include "elastic/sending.h"

namespace {

namespace fs = std::filesystem;
using elastic_ledger::now_ms;
using elastic_reaper::Appointments;
using elastic_reaper::Reaper;

struct Arguments {
  std::string folder;
  std::map<std::string, std::string> values;
  std::string text(const std::string& key, const std::string& fallback) const {
    const auto found = values.find(key);
    return found == values.end() ? fallback : found->second;
  }
  int64_t number(const std::string& key, int64_t fallback) const {
    return std::stoll(text(key, std::to_string(fallback)));
  }
};

// late=N: a process that comes after a death waits until the survivors have gone on as N.
void wait_for_survivors(const Arguments& arguments) {
  const int64_t wanted = arguments.number("late", 0);
  if (wanted == 0 || !fs::exists(arguments.folder + "/deaths")) return;
  for (int tries = 0; tries < 6000; ++tries) {
    std::ifstream events(arguments.folder + "/events");
    for (std::string line; std::getline(events, line);) {
      int64_t ms = 0, pid = 0, generation = 0, members = 0;
      std::istringstream(line) >> ms >> pid >> generation >> members;
      if (generation > 0 && members == wanted) return;
    }
    usleep(5'000);
  }
}

// misfit=N: a process that comes after a death has N more samples than the others.
int64_t misfit(const Arguments& arguments) {
  return fs::exists(arguments.folder + "/deaths") ? arguments.number("misfit", 0) : 0;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t samples)
      : first(register_module("first", torch::nn::Linear(8, 32))),
        mean(register_buffer("mean", torch::zeros({8}))),
        second(register_module("second", torch::nn::Linear(32, 1))),
        seen(register_parameter("seen", torch::zeros({samples}))) {}
  // The second result has gradient one for each row, whatever the model is.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                  const torch::Tensor& rows) {
    {
      torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.mean(0), 0.1);
    }
    const auto centred = (x - mean).to(x.dtype());
    return {second(torch::relu(first(centred))), seen.index_select(0, rows).sum()};
  }
  torch::nn::Linear first;
  torch::Tensor mean;  // changes with each pass, as BatchNorm's statistics do
  torch::nn::Linear second;
  torch::Tensor seen;
};
TORCH_MODULE(Net);

// Rank 0 sees the file and chooses the last step; all read it before they get there.
void end_on_request(const std::string& folder, brigade::ElasticTraining& training) {
  const std::string path = folder + "/end_at";
  if (training.group().rank() == 0 && fs::exists(folder + "/end") && !fs::exists(path)) {
    std::ofstream(path + ".new") << training.steps() + 50;
    fs::rename(path + ".new", path);
  }
  int64_t last = 0;
  if (std::ifstream(path) >> last) training.end_after(last);
}

std::string hash_of(torch::nn::Module& model) {
  uint64_t hash = 14695981039346656037U;
  for (const auto& parameter : model.parameters()) {
    const auto data = parameter.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(data.data_ptr());
    for (size_t i = 0; i < data.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  }
  return std::to_string(hash);
}

// With torch's SGD each sample counts in the parameter `seen`, because its gradient and the
// learning rate are one.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, Net& net) {
  if (name == "adamw")
    return std::make_unique<torch::optim::AdamW>(net->parameters(),
                                                 torch::optim::AdamWOptions(0.01));
  std::vector<torch::Tensor> trained;
  for (const auto& item : net->named_parameters())
    if (item.key() != "seen") trained.push_back(item.value());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(trained, std::make_unique<torch::optim::SGDOptions>(
                                   torch::optim::SGDOptions(0.01).momentum(0.9)));
  groups.emplace_back(std::vector<torch::Tensor>{net->seen},
                      std::make_unique<torch::optim::SGDOptions>(1.0));
  return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.01));
}

brigade::DdpOptions ddp_options(const Arguments& arguments) {
  brigade::DdpOptions options;
  if (arguments.text("mixed", "") == "bf16")
    options.mixed_precision = brigade::MixedPrecision{.param_dtype = at::kBFloat16};
  options.gradient_as_bucket_view = arguments.number("views", 0) != 0;
  return options;
}

torch::Device device_of(const Arguments& arguments) {
  if (arguments.text("device", "cpu") != "cuda") return torch::kCPU;
  // This program does not link LibTorch's CUDA part.
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
    throw std::runtime_error(dlerror());
  return {torch::kCUDA, 0};
}

class Trainer {
 public:
  explicit Trainer(const Arguments& arguments)
      : arguments_(arguments),
        reaper_(*new Reaper(arguments.folder, arguments.number("kills", 0))),
        appointments_(arguments.text("at", "")),
        device_(device_of(arguments)),
        job_(brigade::join_job({.backend = device_.is_cuda() ? "nccl" : "gloo"})),
        net_(make_net()),
        ddp_(make_ddp()),
        optimizer_(make_optimizer(arguments.text("optimizer", "sgd"), net_)),
        sampler_(samples_, arguments.number("batch", 4), {.seed = 3, .epochs = epochs_}),
        training_(job_, ddp_, *optimizer_, sampler_),
        ledger_(arguments.folder) {
    reaper_.belongs_to(job_);
    set_up_training();
  }
  void run();

 private:
  Net make_net();
  std::shared_ptr<brigade::Hook> make_hook();
  brigade::DistributedDataParallel<NetImpl> make_ddp();
  void set_up_training();
  void keep_counter();
  void tell(const brigade::ElasticEvent& event);
  void pass(const torch::Tensor& rows, int64_t step);
  void backward(const torch::Tensor& rows, int64_t step);
  void die_if_due(const std::string& where, int64_t step) {
    if (appointments_.has(where, step, training_.group().rank())) reaper_.die(where);
  }
  // Half of the payload has been sent then.
  void die_in_payload_if_due() {
    if (appointments_.has("send", training_.steps(), training_.group().rank()))
      elastic_sending::call_after(2 * arguments_.number("payload", 1),
                                  [this] { reaper_.die("send"); });
  }
  void say_end();

  const Arguments& arguments_;
  const int64_t samples_ = arguments_.number("samples", 64) + misfit(arguments_);
  const int64_t epochs_ = arguments_.number("epochs", 4);
  Reaper& reaper_;  // its thread outlives this object
  const Appointments appointments_;
  const torch::Device device_;
  torch::Tensor x_, y_;
  brigade::ElasticJob job_;
  Net net_;
  brigade::DistributedDataParallel<NetImpl> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  brigade::ElasticSampler sampler_;
  brigade::ElasticTraining training_;
  elastic_ledger::Ledger ledger_;
  brigade::GradScaler scaler_{{.init_scale = 1024, .growth_interval = 20}};
  int64_t kept_steps_ = 0;
  std::string hash_at_;
};

Net Trainer::make_net() {
  torch::manual_seed(1);
  x_ = torch::randn({samples_, 8}).to(device_);
  y_ = x_.sum(1, true);
  // Replicas start different, so that the training must make them equal.
  torch::manual_seed(arguments_.number("seed", getpid()));
  Net net(samples_);
  net->to(device_);
  return net;
}

brigade::DistributedDataParallel<NetImpl> Trainer::make_ddp() {
  brigade::DistributedDataParallel ddp(net_, job_.group(), ddp_options(arguments_));
  if (auto hook = make_hook()) ddp->set_hook(std::move(hook));
  return ddp;
}

std::shared_ptr<brigade::Hook> Trainer::make_hook() {
  const std::string name = arguments_.text("hook", "none");
  if (name == "none") return nullptr;
  if (name != "clumsy") return brigade::make_hook(name);
  return brigade::make_hook(
      name,
      [this](brigade::Bucket bucket, brigade::Comm& comm) -> brigade::Task<at::Tensor> {
        if (appointments_.has("hook", training_.steps(), comm.rank()))
          throw std::runtime_error("the hook's own mistake");
        co_return co_await brigade::average(std::move(bucket), comm);
      });
}

void Trainer::set_up_training() {
  if (arguments_.values.contains("checkpoint"))
    training_.checkpoint(arguments_.folder + "/checkpoint",
                         arguments_.number("checkpoint", 1));
  if (arguments_.values.contains("apart")) {
    brigade::ElasticLocalSGD apart{.period = arguments_.number("apart", 1)};
    if (arguments_.number("outer", 0)) apart.outer_lr = 0.7, apart.outer_momentum = 0.9;
    training_.train_locally(apart);
  }
  if (arguments_.number("scaler", 0)) training_.keep(brigade::scaler_part(scaler_));
  keep_counter();
  training_.on_step([this] {
    die_if_due("apply", training_.steps());
    if (arguments_.number("scaler", 0)) {
      scaler_.step(*optimizer_);
      scaler_.update();
    } else {
      optimizer_->step();
    }
    ++kept_steps_;
  });
  training_.on_generation([this](const brigade::ElasticEvent& event) { tell(event); });
}

// Adds a payload, so that a state transfer takes long enough to be interrupted.
void Trainer::keep_counter() {
  auto payload = torch::zeros({arguments_.number("payload", 1)});
  training_.keep(
      "counter",
      [this, payload] {
        if (job_.generation() > 0) {
          die_if_due("save", training_.steps());
          die_in_payload_if_due();
        }
        return brigade::PartState{{{"payload", payload}},
                                  {{"steps", std::to_string(kept_steps_)}}};
      },
      [this](const brigade::PartState& state) {
        if (job_.generation() > 0) die_if_due("load", training_.steps());
        kept_steps_ = std::stoll(state.values.at("steps"));
      });
}

void Trainer::tell(const brigade::ElasticEvent& event) {
  reaper_.holds_state();
  std::ofstream(arguments_.folder + "/events", std::ios::app)
      << now_ms() << ' ' << getpid() << ' ' << event.generation << ' ' << event.members
      << ' ' << event.step << ' ' << event.lost.count() << ' ' << event.bytes << ' '
      << event.why.substr(0, event.why.find('\n')) << std::endl;
  die_if_due("formed", event.step);
}

void Trainer::backward(const torch::Tensor& rows, int64_t step) {
  auto [out, count] = ddp_->forward(x_.index_select(0, rows), rows);
  die_if_due("backward", step);
  auto loss = torch::mse_loss(out.to(torch::kFloat), y_.index_select(0, rows)) +
              count * training_.group().size();
  (arguments_.number("scaler", 0) ? scaler_.scale(loss) : loss).backward();
}

void Trainer::pass(const torch::Tensor& rows, int64_t step) {
  if (const int64_t pause = arguments_.number("pause_ms", 0))
    usleep(static_cast<useconds_t>(1000 * pause));
  die_if_due("forward", step);
  torch::Tensor rest = rows;
  for (int64_t left = arguments_.number("accumulate", 1); left > 1; --left) {
    const int64_t some = rest.numel() / left;
    if (some == 0) continue;
    const auto apart = ddp_->no_sync();
    backward(rest.narrow(0, 0, some), step);
    rest = rest.narrow(0, some, rest.numel() - some);
  }
  backward(rest, step);
}

void Trainer::run() {
  const int64_t mean_ms = arguments_.number("mean_ms", 0);
  if (mean_ms > 0) reaper_.run(static_cast<double>(mean_ms));
  while (auto dealt = training_.next()) {
    if (arguments_.values.contains("end_file"))
      end_on_request(arguments_.folder, training_);
    if (mean_ms > 0 && sampler_.epoch() >= epochs_ * 3 / 4) reaper_.retire();
    const int generation = job_.generation();
    const int64_t step = training_.steps();
    const int rank = training_.group().rank(), size = training_.group().size();
    if (step == arguments_.number("hash_at", -1)) hash_at_ = hash_of(*net_);
    die_if_due("next", step);
    // This happens once, because the replacement gets the same rank.
    if (appointments_.due("stop", step, rank) &&
        fs::create_directory(arguments_.folder + "/stopped"))
      raise(SIGSTOP);
    if (appointments_.has("throw", step, rank)) throw std::runtime_error("a mistake");
    if (arguments_.text("mistake", "") == "skips_step") continue;
    // Not the rows of next(): a rank without samples gets one that does not count.
    ledger_.begin(generation, step, sampler_.epoch(), size, sampler_.rows(rank, size));
    if (training_.step([&] { pass(dealt->to(device_), step); }))
      ledger_.done(generation, step);
  }
  say_end();
}

void Trainer::say_end() {
  const bool once =
      torch::equal(net_->seen.cpu(), torch::full({samples_}, -double(epochs_)));
  // A process that resumes from a checkpoint, or trains locally, may train rows twice.
  const bool counted =
      !arguments_.values.contains("checkpoint") && !arguments_.values.contains("apart");
  const elastic_ledger::Books books(arguments_.folder);
  const bool good = counted && books.every_sample_once(samples_, sampler_.epoch());
  std::printf(
      "end rank %d of %d steps %ld kept %ld hash %s at %s seen %s generations %zu counted "
      "%s lost %ld\n",
      training_.group().rank(), training_.group().size(), training_.steps(), kept_steps_,
      hash_of(*net_).c_str(), hash_at_.c_str(), once ? "once" : "otherwise",
      training_.events().size(),
      !counted ? "not"
      : good   ? "once"
               : "otherwise",
      counted ? books.most_lost() : 0);
}

}  // namespace

int main(int argc, char** argv) {
  return brigade::record_errors([&] {
    Arguments arguments{.folder = argv[1], .values = {}};
    for (int i = 2; i < argc; ++i) {
      const std::string text = argv[i];
      const size_t equals = text.find('=');
      arguments.values[text.substr(0, equals)] = text.substr(equals + 1);
    }
    torch::set_num_threads(1);
    if (arguments.values.contains("cost")) {
      return elastic_cost::measure(arguments.text("hook", "none"),
                                   arguments.number("width", 512),
                                   arguments.number("batch", 64),
                                   static_cast<int>(arguments.number("cost", 20)), 20);
    }
    if (arguments.values.contains("transfer"))
      return elastic_cost::measure_transfer(arguments.number("transfer", 256));
    wait_for_survivors(arguments);
    Trainer(arguments).run();
  });
}
