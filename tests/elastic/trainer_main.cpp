// A small elastic training for the tests and the soak: counts how often each sample was
// trained, in its parameters, and kills itself at random moments if it is told to.
//
//   elastic_trainer FOLDER key=value …
//   cost=ROUNDS, transfer=MB  measure instead, see cost.h
//   end_file=1   ends some steps after there is a file FOLDER/end
//   apart=PERIOD with DiLoCo's outer step if outer=1
//   checkpoint=N after every N steps, in FOLDER/checkpoint
//   device=cuda  over NCCL
//   hook=NAME samples=N batch=N epochs=N  kills=N  mean_ms=N  at=WHERE:STEP:RANK pause_ms=N
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "brigade/brigade.h"
#include "elastic/cost.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

int64_t now_ms() {  // of one clock for all processes of this machine
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             Clock::now().time_since_epoch())
      .count();
}

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

// late=N: who comes after a death waits until those who are left have gone on as N.
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

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t samples)
      : first(register_module("first", torch::nn::Linear(8, 32))),
        mean(register_buffer("mean", torch::zeros({8}))),
        second(register_module("second", torch::nn::Linear(32, 1))),
        seen(register_parameter("seen", torch::zeros({samples}))) {}
  // The second result has a gradient of one for each row, whatever the model is.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                  const torch::Tensor& rows) {
    {
      torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.mean(0), 0.1);
    }
    return {second(torch::relu(first(x - mean))), seen.index_select(0, rows).sum()};
  }
  torch::nn::Linear first;
  torch::Tensor mean;  // changes with each pass, as BatchNorm's statistics do
  torch::nn::Linear second;
  torch::Tensor seen;
};
TORCH_MODULE(Net);

// Ends this process, unless nobody else would have the state, or all deaths have been died.
class Reaper {
 public:
  Reaper(std::string folder, int64_t kills) : folder_(std::move(folder)), kills_(kills) {}

  // The lock goes when this process does, however that is.
  void holds_state() {
    if (holder_ >= 0) return;
    holder_ = open(mine().c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    flock(holder_, LOCK_EX);
  }
  void die(const std::string& where) {
    // Who has an appointment is not stood up because the others are a little behind. With
    // a handover they are not: who is alone then stays so until it has sent.
    const bool waits = where != "anywhere" && where != "save";
    for (int tries = 0; waits && others() == 0 && deaths() < kills_ && tries < 1000;
         ++tries)
      usleep(5'000);
    const int lock = open((folder_ + "/lock").c_str(), O_CREAT | O_RDWR, 0600);
    flock(lock, LOCK_EX);  // given back by this process's end
    if (others() > 0 && deaths() < kills_ && !retired_) {
      std::ofstream(folder_ + "/deaths", std::ios::app)
          << now_ms() << ' ' << getpid() << ' ' << where << std::endl;
      fs::remove(mine());
      raise(SIGKILL);
    }
    close(lock);
  }
  // Towards the end nobody dies any more: it would be replaced too late.
  void retire() { retired_ = true; }
  void run(double mean_ms) {
    std::thread([this, mean_ms] {
      std::mt19937 random(std::random_device{}());
      std::exponential_distribution<double> delay(1 / mean_ms);
      while (true) {
        usleep(static_cast<useconds_t>(1000 * delay(random)));
        die("anywhere");
      }
    }).detach();
  }

 private:
  std::string mine() const { return folder_ + "/holder." + std::to_string(getpid()); }
  int others() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("holder.")) continue;
      const int file = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      count += file >= 0 && entry.path() != mine() && flock(file, LOCK_EX | LOCK_NB) != 0;
      close(file);
    }
    return count;
  }
  int64_t deaths() const {
    std::ifstream file(folder_ + "/deaths");
    int64_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  const std::string folder_;
  const int64_t kills_;
  int holder_ = -1;
  std::atomic<bool> retired_ = false;
};

// at=WHERE:STEP:RANK, several with commas: dies there.
class Appointments {
 public:
  explicit Appointments(const std::string& text) {
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ',');) {
      std::istringstream parts(one);
      std::string where, step, rank;
      std::getline(parts, where, ':');
      std::getline(parts, step, ':');
      std::getline(parts, rank, ':');
      wanted_.push_back({where, std::stoll(step), std::stoi(rank)});
    }
  }
  // The same from that step on.
  bool due(const std::string& where, int64_t step, int rank) const {
    for (int64_t at = 0; at <= step; ++at)
      if (has(where, at, rank)) return true;
    return false;
  }
  bool has(const std::string& where, int64_t step, int rank) const {
    for (const auto& [place, at, who] : wanted_)
      if (place == where && at == step && who == rank) return true;
    return false;
  }

 private:
  std::vector<std::tuple<std::string, int64_t, int>> wanted_;
};

// Rank 0 sees the file and says which step is the last; all read that before they are
// there.
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

void train(const Arguments& arguments) {
  const int64_t samples = arguments.number("samples", 64);
  const int64_t epochs = arguments.number("epochs", 4);
  // Its thread outlives this function.
  auto& reaper = *new Reaper(arguments.folder, arguments.number("kills", 0));
  const Appointments appointments(arguments.text("at", ""));
  const bool on_gpu = arguments.text("device", "cpu") == "cuda";
  // This program does not link LibTorch's CUDA part.
  if (on_gpu && !dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
    throw std::runtime_error(dlerror());
  const torch::Device device = on_gpu ? torch::Device("cuda:0") : torch::Device("cpu");
  torch::manual_seed(1);
  const auto x = torch::randn({samples, 8}).to(device);
  const auto y = x.sum(1, true);
  torch::manual_seed(  // replicas must be made equal by others
      arguments.number("seed", getpid()));

  wait_for_survivors(arguments);
  auto job = brigade::join_job({.backend = on_gpu ? "nccl" : "gloo"});
  Net net(samples);
  net->to(device);
  brigade::DistributedDataParallel ddp(net, job.group());
  if (const std::string hook = arguments.text("hook", "none"); hook != "none")
    ddp->set_hook(brigade::make_hook(hook));
  std::vector<torch::Tensor> trained;
  for (const auto& item : net->named_parameters())
    if (item.key() != "seen") trained.push_back(item.value());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(trained, std::make_unique<torch::optim::SGDOptions>(
                                   torch::optim::SGDOptions(0.01).momentum(0.9)));
  groups.emplace_back(std::vector<torch::Tensor>{net->seen},
                      std::make_unique<torch::optim::SGDOptions>(1.0));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.01));
  brigade::ElasticSampler sampler(samples, arguments.number("batch", 4),
                                  {.seed = 3, .epochs = epochs});
  brigade::ElasticTraining training(job, ddp, optimizer, sampler);

  if (arguments.values.contains("checkpoint"))
    training.checkpoint(arguments.folder + "/checkpoint",
                        arguments.number("checkpoint", 1));
  if (arguments.values.contains("apart")) {
    brigade::ElasticApart apart{.period = arguments.number("apart", 1)};
    if (arguments.number("outer", 0)) apart.outer_lr = 0.7, apart.outer_momentum = 0.9;
    training.train_apart(apart);
  }
  int64_t kept_steps = 0;
  // A payload, so that a handover takes long enough to be interrupted.
  auto payload = torch::zeros({arguments.number("payload", 1)});
  training.keep(
      "counter",
      [&] {
        if (job.generation() > 0 &&
            appointments.has("save", training.steps(), training.group().rank()))
          reaper.die("save");
        return brigade::PartState{{{"payload", payload}},
                                  {{"steps", std::to_string(kept_steps)}}};
      },
      [&](const brigade::PartState& state) {
        if (job.generation() > 0 &&
            appointments.has("load", training.steps(), training.group().rank()))
          reaper.die("load");
        kept_steps = std::stoll(state.values.at("steps"));
      });
  training.on_step([&] {
    if (appointments.has("apply", training.steps(), training.group().rank()))
      reaper.die("apply");
    optimizer.step();
    ++kept_steps;
  });
  training.on_generation([&](const brigade::ElasticEvent& event) {
    reaper.holds_state();
    std::ofstream(arguments.folder + "/events", std::ios::app)
        << now_ms() << ' ' << getpid() << ' ' << event.generation << ' ' << event.members
        << ' ' << event.step << ' ' << event.lost.count() << ' ' << event.bytes << ' '
        << event.why.substr(0, event.why.find('\n')) << std::endl;
    if (appointments.has("formed", event.step, training.group().rank()))
      reaper.die("formed");
  });
  const int64_t mean_ms = arguments.number("mean_ms", 0);
  if (mean_ms > 0) reaper.run(static_cast<double>(mean_ms));
  const auto pause = static_cast<useconds_t>(1000 * arguments.number("pause_ms", 0));
  std::string hash_at;
  while (auto dealt = training.next()) {
    const auto rows = std::make_optional(dealt->to(device));
    if (arguments.values.contains("end_file")) end_on_request(arguments.folder, training);
    if (mean_ms > 0 && sampler.epoch() >= epochs * 3 / 4) reaper.retire();
    const int64_t step = training.steps();
    const int rank = training.group().rank();
    if (step == arguments.number("hash_at", -1)) hash_at = hash_of(*net);
    if (appointments.has("next", step, rank)) reaper.die("next");
    // Once: the replacement comes to the same rank.
    if (appointments.due("stop", step, rank) &&
        fs::create_directory(arguments.folder + "/stopped"))
      raise(SIGSTOP);
    if (appointments.has("throw", step, rank)) throw std::runtime_error("a mistake");
    if (arguments.text("mistake", "") == "skips_step") continue;
    training.step([&] {
      if (pause) usleep(pause);
      if (appointments.has("forward", step, rank)) reaper.die("forward");
      auto [out, count] = ddp->forward(x.index_select(0, *rows), *rows);
      if (appointments.has("backward", step, rank)) reaper.die("backward");
      const auto loss =
          torch::mse_loss(out, y.index_select(0, *rows)) + count * training.group().size();
      loss.backward();
    });
  }
  const bool once = torch::equal(net->seen.cpu(), torch::full({samples}, -double(epochs)));
  std::printf(
      "end rank %d of %d steps %ld kept %ld hash %s at %s seen %s generations %zu\n",
      training.group().rank(), training.group().size(), training.steps(), kept_steps,
      hash_of(*net).c_str(), hash_at.c_str(), once ? "once" : "otherwise",
      training.events().size());
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
                                   static_cast<int>(arguments.number("cost", 20)), 20);
    }
    if (arguments.values.contains("transfer"))
      return elastic_cost::measure_transfer(arguments.number("transfer", 256));
    train(arguments);
  });
}
