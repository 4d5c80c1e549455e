// trainer FOLDER STEPS KILLS SEED: runs five small trainings in turns, each with another
// hook and its own checkpoints. In each of its first KILLS attempts one of the ranks kills
// itself, at a step and in a phase that SEED chooses. Each rank reports at the end how far
// its runs came.
#include <signal.h>

#include <cinttypes>
#include <cstdio>
#include <random>
#include <thread>

#include "base/hash.h"
#include "brigade/launch.h"
#include "small_run.h"

namespace brigade::testing {
namespace {

enum class Phase { before_step, after_step, in_save, after_save, at_any_time, count };

struct Kill {
  int64_t step = -1;
  int rank = 0;
  Phase phase = Phase::before_step;
  int microseconds = 0;
};

// Later attempts die later, so that every run makes progress.
Kill plan(int attempt, int kills, int64_t steps, unsigned seed) {
  std::mt19937 random(seed * 1000 + static_cast<unsigned>(attempt));
  Kill kill;
  if (attempt >= kills) return kill;
  const int64_t stretch = steps / kills;
  kill.step = attempt * stretch + static_cast<int64_t>(random() % stretch);
  kill.rank = static_cast<int>(random() % 2);
  kill.phase = static_cast<Phase>(random() % static_cast<unsigned>(Phase::count));
  kill.microseconds = static_cast<int>(random() % 40'000);
  return kill;
}

class Trainer {
 public:
  Trainer(const ProcessGroup& group, const std::string& folder, Kill kill)
      : group_(group), kill_(kill) {
    if (kill_.rank != group.rank()) kill_.step = -1;
    const std::pair<const char*, const char*> kinds[] = {{"allreduce", "adam"},
                                                         {"powersgd:rank=1,start=3", "sgd"},
                                                         {"int8", "adamw"},
                                                         {"allreduce", "zero"},
                                                         {"allreduce", "reduce_scatter"}};
    for (const auto& [hook, optimizer] : kinds)
      runs_.push_back(
          std::make_unique<SmallRun>(group, folder + "/" + optimizer, hook, optimizer));
  }

  void train(int64_t steps) {
    steps_ = steps;
    // After a kill between two saves the runs are at different steps.
    int64_t step = steps;
    for (const auto& run : runs_) step = std::min(step, run->step());
    for (; step < steps; ++step) {
      if (due(step, Phase::at_any_time) && !dying_.joinable()) die_soon();
      die_at(step, Phase::before_step);
      for (auto& run : runs_)
        if (run->step() == step) advance(*run, step);
    }
    if (dying_.joinable()) dying_.join();
  }

  void say() {
    for (size_t i = 0; i < runs_.size(); ++i) {
      const at::Tensor all = runs_[i]->everything().contiguous();
      const uint64_t hash =
          base::hash64({static_cast<const char*>(all.const_data_ptr()), all.nbytes()});
      std::printf("rank %d run %zu %016" PRIx64 "\n", group_.rank(), i, hash);
    }
  }

 private:
  void advance(SmallRun& run, int64_t step) {
    run.train_step();
    die_at(step, Phase::after_step);
    if (step < 3 || step % 4 == 0 || step + 1 == steps_) save(run, step);
  }
  void save(SmallRun& run, int64_t step) {
    CheckpointPart deadly{.name = "deadly", .per_rank = true};
    deadly.save = [&] {
      die_at(step, Phase::in_save);
      return PartState{};
    };
    deadly.load = [](const SavedPart&) { return [] {}; };
    run.save({deadly});
    die_at(step, Phase::after_save);
  }
  bool due(int64_t step, Phase phase) const {
    return kill_.step >= 0 && step >= kill_.step && phase == kill_.phase;
  }
  void die_at(int64_t step, Phase phase) const {
    if (due(step, phase)) raise(SIGKILL);
  }
  void die_soon() {
    dying_ = std::thread([wait = kill_.microseconds] {
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
      raise(SIGKILL);
    });
  }

  ProcessGroup group_;
  Kill kill_;
  int64_t steps_ = 0;
  std::vector<std::unique_ptr<SmallRun>> runs_;
  std::thread dying_;
};

}  // namespace
}  // namespace brigade::testing

int main(int, char** argv) {
  using namespace brigade;
  return record_errors([&] {
    at::set_num_threads(1);
    const ProcessGroup group = init_process_group({.backend = "gloo"});
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const int64_t steps = std::stoll(argv[2]);
    testing::Trainer trainer(
        group, argv[1],
        testing::plan(restarts ? std::stoi(restarts) : 0, std::stoi(argv[3]), steps,
                      static_cast<unsigned>(std::stoul(argv[4]))));
    trainer.train(steps);
    trainer.say();
    group.barrier();
  });
}
