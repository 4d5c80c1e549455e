#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "base/exception_text.h"
#include "base/failure.h"
#include "brigade/elastic.h"
#include "brigade/error.h"
#include "brigade/optim.h"
#include "brigade/zero.h"
#include "elastic/job.h"
#include "elastic/periodic_mean.h"
#include "elastic/replica.h"

namespace brigade {
namespace {

using Clock = std::chrono::steady_clock;

// The same members may fail in the same step this often before that counts as their fault.
constexpr int kTries = 3;

// How often members ask each other whether a newcomer waits, and after how many steps at
// the latest. Each time costs some tens of microseconds.
constexpr double kNoticeMicroseconds = 50'000;
constexpr int64_t kMostStepsWithoutNotice = 64;

bool is_about_a_peer(Failure kind) {
  return kind == Failure::peer_lost || kind == Failure::timeout ||
         kind == Failure::rendezvous || kind == Failure::aborted;
}

bool has_newcomers(const std::vector<int>& members, const std::vector<int>& before) {
  return std::ranges::any_of(members, [&](int member) {
    return std::ranges::find(before, member) == before.end();
  });
}

// Zeroes the gradients of this pass before anything reads them.
class ZeroedGradients {
 public:
  ZeroedGradients(const std::vector<at::Tensor>& parameters, bool on) {
    if (!on) return;
    for (const at::Tensor& parameter : parameters)
      hooks_.emplace_back(parameter, parameter.register_hook([](const at::Tensor& grad) {
        return at::zeros_like(grad);
      }));
  }
  ~ZeroedGradients() {
    for (auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
  }
  ZeroedGradients(const ZeroedGradients&) = delete;
  ZeroedGradients& operator=(const ZeroedGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

}  // namespace

struct ElasticTraining::State {
  State(ElasticJob job_given, DdpCore& core_given, torch::nn::Module& model,
        ElasticSampler& sampler_given)
      : job(job_given.state()),
        core(core_given),
        sampler(sampler_given),
        replica(core, model, job->elastic()) {}

  // An all-reduce of whether a newcomer waits and how long a step takes. It starts with a
  // step and is read after it, but not in every step if steps are short; the equal sums
  // decide when to do it next. With NCCL it starts after the pass, in every step: a
  // collective that a dead peer left unfinished ends as if it had succeeded, so only a rank
  // that hears from all others at this point knows that its gradients are complete.
  struct NewcomerFlag {
    at::Tensor sums;  // undefined: not in this step
    c10::intrusive_ptr<c10d::Work> work;
  };
  NewcomerFlag start_notice();
  NewcomerFlag make_newcomer_flag() const;
  bool newcomer_waits(NewcomerFlag& flag);
  bool on_device() const { return job->elastic() && job->group().works_on_device(); }
  void wait_for_device() const;

  bool is_lost_peer(const std::exception& error) const;
  // Both run until a generation is formed. form_after() follows a failure.
  void form_after(const std::string& why);
  bool form_next(const std::string& why, bool done);
  void leave(const std::string& failure);
  void form(const ElasticJob::State::Assignment& place, int64_t& bytes);
  void take_up_state(int64_t& bytes);
  // Returns each rank's finished steps times two, plus one if it has averaged since.
  std::vector<int64_t> gather_progress() const;
  void meet_if_due();
  void save() {
    save_checkpoint(folder, replica.step(), job->group(), replica.checkpoint_parts());
  }
  void tell(const std::string& why, Clock::time_point since, int64_t bytes);
  void check_tries(const std::string& why);

  std::shared_ptr<ElasticJob::State> job;
  DdpCore& core;
  ElasticSampler& sampler;
  elastic::Replica replica;
  std::function<void()> apply;
  std::function<void(const ElasticEvent&)> on_generation;
  std::vector<ElasticEvent> events;
  std::unique_ptr<elastic::PeriodicMean> periodic_mean;  // none: gradients are averaged
  std::string folder;                                    // of checkpoints
  int64_t save_every = 0;
  int64_t last_step = std::numeric_limits<int64_t>::max();
  bool formed = false;
  bool has_buckets = false;  // the Reducer's are the training's: a generation is formed
  bool somebody_waited = false;
  int64_t next_notice = 0;  // after this many finished steps
  std::optional<Clock::time_point> step_began;
  double step_microseconds = 0;
  // Whether rows were handed out whose step is still to come.
  bool dealt = false;
  bool empty = false;
  // Counts failures in this step among these members.
  std::vector<int> members;
  std::vector<int> last_formed;  // the members of the last generation that was formed
  int64_t failed_step = -1;
  int tries = 0;
  std::chrono::milliseconds transfer{0};  // of the present generation's state
};

ElasticTraining::ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                                 ElasticSampler& sampler) {
  if (core.in_backward()) {
    throw ConfigError(
        "ElasticTraining: this model's optimizer, or ZeRO, steps in the backward pass; a "
        "step that fails half-way could not be taken back. Use an optimizer that steps by "
        "itself");
  }
  if (job.is_elastic() && core.group().size() != 1) {
    throw ConfigError(
        "ElasticTraining: the model was made with a group of several ranks; make it with "
        "job.group()");
  }
  state_ = std::make_unique<State>(std::move(job), core, model, sampler);
  state_->replica.add(sampler.part());
}

void ElasticTraining::keep_optimizer(const std::function<CheckpointPart()>& part) {
  try {
    state_->replica.add(part());
  } catch (const ConfigError& error) {
    throw ConfigError(
        std::string("ElasticTraining: a newcomer could not get this optimizer's state, as "
                    "with ZeRO, whose shards die with their rank: ") +
        error.what());
  }
}

ElasticTraining::ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                                 torch::optim::Optimizer& optimizer,
                                 ElasticSampler& sampler)
    : ElasticTraining(std::move(job), core, model, sampler) {
  keep_optimizer([&] { return optimizer_part(optimizer, model); });
  state_->apply = [&optimizer] { optimizer.step(); };
}

ElasticTraining::ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                                 optim::Optimizer& optimizer, ElasticSampler& sampler)
    : ElasticTraining(std::move(job), core, model, sampler) {
  keep_optimizer([&] { return optimizer_part(optimizer, model); });
  state_->apply = [&core, &optimizer] {
    for (const at::Tensor& parameter : core.parameters())
      if (parameter.grad().defined()) optimizer.step_param(parameter, parameter.grad());
  };
}

ElasticTraining::ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                                 optim::ShardedOptimizer&, ElasticSampler& sampler)
    : ElasticTraining(std::move(job), core, model, sampler) {
  throw ConfigError(
      "ElasticTraining: with ZeRO each rank keeps a shard of the optimizer's state, which "
      "dies with it; use an optimizer that every rank keeps whole");
}

ElasticTraining::~ElasticTraining() = default;

void ElasticTraining::keep(CheckpointPart part) {
  if (state_->formed)
    throw ConfigError(
        "ElasticTraining: keep() after the first next(), when others may "
        "have begun without '" +
        part.name + "'");
  state_->replica.add(std::move(part));
}

void ElasticTraining::keep(std::string name, std::function<PartState()> save,
                           std::function<void(const PartState&)> load) {
  CheckpointPart part{.name = std::move(name)};
  part.save = std::move(save);
  part.load = [load = std::move(load)](SavedPart saved) {
    return [load, state = std::move(saved.states.at(0))] { load(state); };
  };
  keep(std::move(part));
}

void ElasticTraining::train_locally(const ElasticLocalSGD& options) {
  State& s = *state_;
  s.periodic_mean = std::make_unique<elastic::PeriodicMean>(s.core.parameters(), options);
  keep(s.periodic_mean->part());
  s.replica.train_locally();
}

void ElasticTraining::checkpoint(std::string folder, int64_t every) {
  if (every < 1 || folder.empty())
    throw ConfigError("ElasticTraining: a checkpoint in '" + folder + "' after every " +
                      std::to_string(every) + " steps; give a folder, and 1 or more");
  state_->folder = std::move(folder);
  state_->save_every = every;
}

void ElasticTraining::on_step(std::function<void()> apply) {
  state_->apply = std::move(apply);
}
void ElasticTraining::end_after(int64_t steps) { state_->last_step = steps; }
void ElasticTraining::on_generation(std::function<void(const ElasticEvent&)> tell) {
  state_->on_generation = std::move(tell);
}
int64_t ElasticTraining::steps() const {
  return std::max<int64_t>(0, state_->replica.step());
}
const ProcessGroup& ElasticTraining::group() const { return state_->job->group(); }
const std::vector<ElasticEvent>& ElasticTraining::events() const { return state_->events; }

// ---- forming ----------------------------------------------------------------------------

bool ElasticTraining::State::is_lost_peer(const std::exception& error) const {
  if (!job->elastic()) return false;
  const base::Cause cause = base::failure_of(error);
  if (job->aborted() || is_about_a_peer(cause.kind)) return true;
  // An error of this rank's own hook would occur again.
  return dynamic_cast<const HookError*>(&error) && cause.rank != job->group().rank();
}

// A fault of the program itself would come back for ever.
void ElasticTraining::State::check_tries(const std::string& why) {
  if (failed_step != replica.step()) tries = 0;
  failed_step = replica.step();
  if (++tries <= kTries) return;
  throw Error("elastic: step " + std::to_string(replica.step()) + " failed " +
              std::to_string(tries) +
              " times with the same members, the last time with: " + why);
}

void ElasticTraining::State::form_after(const std::string& why) {
  check_tries(why);
  form_next(why.empty() ? "an error without a text" : why, /*done=*/false);
}

void ElasticTraining::State::leave(const std::string& failure) {
  job->leave(failure);
  // The Reducer of a generation that was not formed has other buckets.
  if (std::exchange(has_buckets, false)) replica.note_buckets();
  core.leave_group();
  replica.revert();
}

bool ElasticTraining::State::form_next(const std::string& why, bool done) {
  const auto since = Clock::now();
  std::string failure = why;
  while (true) {
    if (!failure.empty()) leave(failure);
    const auto place = job->wait_for_assignment(replica.step(), done);
    if (!place) return false;
    // Leaves only when all have come here: some may still have been in the last step.
    if (failure.empty()) leave("");
    const bool newcomers =
        replica.step() >= 0 && has_newcomers(place->members, last_formed);
    if (std::exchange(members, place->members) != place->members) tries = 0;
    try {
      int64_t bytes = 0;
      form(*place, bytes);
      last_formed = members;
      tell(place->why, since, bytes);
      return true;
    } catch (const std::exception& error) {
      // A newcomer that does not match ends; ranks that have the state go on.
      const bool goes = newcomers && dynamic_cast<const MismatchError*>(&error);
      if (!goes && !is_lost_peer(error)) throw;
      failure = base::text_of(error);
      check_tries(failure);
    }
  }
}

void ElasticTraining::State::form(const ElasticJob::State::Assignment& place,
                                  int64_t& bytes) {
  job->join(place);
  core.rejoin(job->group());
  take_up_state(bytes);
  has_buckets = true;
  job->say_formed();
}

std::vector<int64_t> ElasticTraining::State::gather_progress() const {
  const int64_t step = replica.step();
  const bool met = periodic_mean && step >= 0 && periodic_mean->has_averaged(step);
  std::vector<int64_t> all;
  for (const std::string& text : job->group().gather_texts(
           "elastic steps", std::to_string(step < 0 ? -1 : 2 * step + met)))
    all.push_back(std::stoll(text));
  return all;
}

void ElasticTraining::State::take_up_state(int64_t& bytes) {
  transfer = {};
  const ProcessGroup& group = job->group();
  group.check_same("elastic trainings",
                   sampler.describe() + "\n" + replica.describe() +
                       (periodic_mean ? "\n" + periodic_mean->describe() : ""),
                   "give every rank the same samples, hook, and things to keep");
  std::vector<int64_t> progress = gather_progress();
  if (save_every > 0 && std::ranges::max(progress) < 0 &&
      load_checkpoint(folder, group, replica.checkpoint_parts()))
    progress = gather_progress();
  const auto most = std::ranges::max_element(progress);
  if (*most < 0 || std::ranges::any_of(progress, [&](int64_t p) { return p != *most; })) {
    const int64_t mine = progress[static_cast<size_t>(group.rank())];
    // A rank that trains locally keeps its progress, unless others have averaged without
    // it: then the mean has it.
    const bool keeps = periodic_mean && mine >= 0;
    const bool missed_meeting = *most % 2 == 1 && mine == *most - 1;
    replica.keep_own({.model = keeps && !missed_meeting, .optimizer = keeps});
    bytes = replica.adopt(group, static_cast<int>(most - progress.begin()),
                          std::max<int64_t>(*most, 0) / 2, transfer);
  }
  if (*most >= 0) replica.take_up_buckets(group, static_cast<int>(most - progress.begin()));
  const auto hashes = group.gather_texts("elastic state", replica.hash());
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    throw MismatchError("elastic: rank " + std::to_string(rank) +
                        " has another state than rank 0 after step " +
                        std::to_string(replica.step()) +
                        ": something on one of them changes what the others do not change");
  }
}

void ElasticTraining::State::tell(const std::string& why, Clock::time_point since,
                                  int64_t bytes) {
  ElasticEvent event;
  event.generation = job->generation();
  event.step = replica.step();
  event.members = job->group().size();
  event.why = formed ? why : "";
  event.lost = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
  event.bytes = bytes;
  event.transfer = transfer;
  formed = true;
  next_notice = replica.step();
  step_began.reset();
  step_microseconds = 0;
  events.push_back(event);
  if (on_generation) on_generation(event);
}

// ---- the loop ---------------------------------------------------------------------------

std::optional<at::Tensor> ElasticTraining::next() {
  State& s = *state_;
  if (s.dealt) {
    throw Error(
        "ElasticTraining: next() was called again without step(): the rows that it gave "
        "would never be trained");
  }
  if (!s.formed && s.job->elastic()) {
    s.form_next("", /*done=*/false);
  } else if (!s.formed) {
    int64_t bytes = 0;
    s.take_up_state(bytes);
    s.tell("", Clock::now(), bytes);
  }
  if (std::exchange(s.somebody_waited, false)) s.form_next("", /*done=*/false);
  while (s.sampler.at_end() || s.replica.step() >= s.last_step) {
    if (s.periodic_mean && !s.periodic_mean->has_averaged(s.replica.step())) {
      try {
        s.periodic_mean->meet(s.job->group(), s.replica.step());
      } catch (const std::exception& error) {
        if (!s.is_lost_peer(error)) throw;
        s.form_after(base::text_of(error));
      }
      continue;
    }
    // Ends when all have come to the end: one that failed in the last step needs a source.
    if (!s.job->elastic() || !s.form_next("", /*done=*/true)) return std::nullopt;
  }
  const ProcessGroup& group = s.job->group();
  at::Tensor rows = s.sampler.rows(group.rank(), group.size());
  s.empty = rows.numel() == 0;
  s.dealt = true;
  return s.empty ? s.sampler.rows(0, group.size()).narrow(0, 0, 1) : rows;
}

ElasticTraining::State::NewcomerFlag ElasticTraining::State::start_notice() {
  const auto now = Clock::now();
  if (step_began)
    step_microseconds =
        std::chrono::duration<double, std::micro>(now - *step_began).count();
  step_began = now;
  // If no gradients are averaged, nothing else keeps members in step.
  const bool due = periodic_mean || replica.step() >= next_notice;
  const bool now_due = job->elastic() && !on_device() && due;
  return now_due ? make_newcomer_flag() : NewcomerFlag{};
}

ElasticTraining::State::NewcomerFlag ElasticTraining::State::make_newcomer_flag() const {
  NewcomerFlag flag;
  flag.sums = at::tensor({int64_t{job->newcomer_waits()},
                          static_cast<int64_t>(std::min(step_microseconds, 1e9))});
  if (job->group().size() == 1) return flag;
  std::vector<at::Tensor> tensors{flag.sums};
  flag.work = job->group().c10d()->allreduce(tensors);
  return flag;
}

// Collectives of an aborted group end; until then the host may query them but not wait.
void ElasticTraining::State::wait_for_device() const {
  const c10::Device device = core.parameters().front().device();
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  while (!stream.query()) {
    if (job->aborted())
      throw base::AbortedError("elastic: the group was aborted in this step");
    std::this_thread::yield();
  }
}

bool ElasticTraining::State::newcomer_waits(NewcomerFlag& flag) {
  if (on_device()) {
    wait_for_device();
    flag = make_newcomer_flag();
  }
  if (!flag.sums.defined()) return false;
  if (flag.work) flag.work->wait();
  const int64_t* sums = flag.sums.const_data_ptr<int64_t>();
  const double mean = static_cast<double>(sums[1]) / job->group().size();
  const double steps = mean > 0 ? kNoticeMicroseconds / mean : 1;
  next_notice = replica.step() + std::clamp(static_cast<int64_t>(steps), int64_t{1},
                                            kMostStepsWithoutNotice);
  return sums[0] > 0;
}

void ElasticTraining::State::meet_if_due() {
  const int64_t step = replica.step();
  if (!periodic_mean || !periodic_mean->due(step) || periodic_mean->has_averaged(step))
    return;
  periodic_mean->meet(job->group(), step);
}

bool ElasticTraining::step(const std::function<void()>& pass) {
  State& s = *state_;
  if (!std::exchange(s.dealt, false))
    throw Error("ElasticTraining: step() without rows of next()");
  bool waits = false;
  try {
    s.meet_if_due();
    auto flag = s.start_notice();
    zero_grad(s.core.parameters());
    std::optional<NoSync> apart;
    if (s.periodic_mean) apart.emplace(s.core);
    const ZeroedGradients muted(s.core.parameters(), s.empty);
    pass();
    waits = s.newcomer_waits(flag);
  } catch (const std::exception& error) {
    if (!s.is_lost_peer(error)) throw;
    s.form_after(base::text_of(error));
    return false;
  }
  s.apply();
  s.sampler.advance(s.job->group().size());
  s.replica.commit();
  s.somebody_waited = waits;
  if (s.save_every == 0 || s.replica.step() % s.save_every != 0) return true;
  try {
    s.save();
  } catch (const std::exception& error) {
    if (!s.is_lost_peer(error)) throw;
    s.form_after(base::text_of(error));
  }
  return true;
}

}  // namespace brigade
