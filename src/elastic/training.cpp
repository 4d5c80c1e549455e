#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <limits>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/exception_text.h"
#include "brigade/elastic.h"
#include "brigade/error.h"
#include "brigade/optim/optimizer.h"
#include "elastic/job.h"
#include "elastic/replica.h"

namespace brigade {
namespace {

using Clock = std::chrono::steady_clock;

// How often the same members may fail in the same step before that counts as a fault of
// theirs.
constexpr int kTries = 3;

bool speaks_of_a_lost_peer(const std::string& text) {
  constexpr std::array kPhrases{
      "gloo::",      "c10::Dist",         "communicator was aborted", "group was aborted",
      "imed out",    "onnection refused", "did not come within",      "gloo cannot connect",
      "by peer",     "Broken pipe",       "remote process exited",    "Socket closed",
      "pair closure"};
  return std::ranges::any_of(
      kPhrases, [&](const char* phrase) { return text.find(phrase) != std::string::npos; });
}

// The gradients of this pass become zero before anybody sees them.
class Muted {
 public:
  Muted(const std::vector<at::Tensor>& parameters, bool on) {
    if (!on) return;
    for (const at::Tensor& parameter : parameters)
      hooks_.emplace_back(parameter, parameter.register_hook([](const at::Tensor& grad) {
        return at::zeros_like(grad);
      }));
  }
  ~Muted() {
    for (auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
  }
  Muted(const Muted&) = delete;
  Muted& operator=(const Muted&) = delete;

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
        replica(core, model) {}

  // Whether somebody waits, told by all to all: starts with a step, is asked after it.
  struct Notice {
    at::Tensor waiting;
    c10::intrusive_ptr<c10d::Work> work;
  };
  Notice start_notice() const;
  static bool somebody_waits(Notice& notice);

  bool is_lost_peer(const std::exception& error) const;
  // Each until a generation is formed. The former after a failure.
  void form_after(const std::string& why);
  bool form_next(const std::string& why, bool done);
  void leave(const std::string& failure);
  void form(const ElasticJob::State::Place& place, int64_t& bytes);
  void take_up_state(int64_t& bytes);
  void tell(const std::string& why, Clock::time_point since, int64_t bytes);
  void check_tries(const std::string& why);

  std::shared_ptr<ElasticJob::State> job;
  DdpCore& core;
  ElasticSampler& sampler;
  elastic::Replica replica;
  std::function<void()> apply;
  std::function<void(const ElasticEvent&)> on_generation;
  std::vector<ElasticEvent> events;
  int64_t last_step = std::numeric_limits<int64_t>::max();
  bool formed = false;
  bool somebody_waited = false;
  // Rows were dealt out, and their step is to come.
  bool dealt = false;
  bool empty = false;
  // Failures in this step among these members.
  std::vector<int> members;
  int64_t failed_step = -1;
  int tries = 0;
};

ElasticTraining::ElasticTraining(ElasticJob job, DdpCore& core, torch::nn::Module& model,
                                 ElasticSampler& sampler) {
  if (core.in_backward()) {
    throw ConfigError(
        "ElasticTraining: this model's optimizer steps in the backward pass; a step that "
        "fails half-way could not be taken back. Use an optimizer that steps by itself");
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
  if (dynamic_cast<const ConfigError*>(&error) ||
      dynamic_cast<const MismatchError*>(&error))
    return job->aborted();
  return job->aborted() || dynamic_cast<const HookError*>(&error) ||
         dynamic_cast<const TimeoutError*>(&error) ||
         dynamic_cast<const RendezvousError*>(&error) ||
         speaks_of_a_lost_peer(base::describe(error));
}

// A fault of the program's own would come back for ever.
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
  core.leave_group();
  replica.take_back();
}

bool ElasticTraining::State::form_next(const std::string& why, bool done) {
  const auto since = Clock::now();
  std::string failure = why;
  while (true) {
    if (!failure.empty()) leave(failure);
    const auto place = job->wait_for_place(replica.step(), done);
    if (!place) return false;
    // Not before all have come here: some may still have been in the step that I had done.
    if (failure.empty()) leave("");
    try {
      int64_t bytes = 0;
      form(*place, bytes);
      if (members != place->members) tries = 0;
      members = place->members;
      tell(place->why, since, bytes);
      return true;
    } catch (const std::exception& error) {
      if (!is_lost_peer(error)) throw;
      failure = base::text_of(error);
      check_tries(failure);
    }
  }
}

void ElasticTraining::State::form(const ElasticJob::State::Place& place, int64_t& bytes) {
  job->join(place);
  core.rejoin(job->group());
  take_up_state(bytes);
  job->say_formed();
}

void ElasticTraining::State::take_up_state(int64_t& bytes) {
  const ProcessGroup& group = job->group();
  group.agree_on("elastic trainings", sampler.describe() + "\n" + replica.describe(),
                 "give every rank the same samples, hook, and things to keep");
  std::vector<int64_t> steps;
  for (const std::string& text :
       group.gather_texts("elastic steps", std::to_string(replica.step())))
    steps.push_back(std::stoll(text));
  const auto most = std::ranges::max_element(steps);
  if (*most < 0 || std::ranges::any_of(steps, [&](int64_t s) { return s != *most; })) {
    bytes = replica.adopt(group, static_cast<int>(most - steps.begin()),
                          std::max<int64_t>(*most, 0));
  }
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
  formed = true;
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
    // Not before all have come to the end: one that failed in the last step needs a source.
    if (!s.job->elastic() || !s.form_next("", /*done=*/true)) return std::nullopt;
  }
  const ProcessGroup& group = s.job->group();
  at::Tensor rows = s.sampler.rows(group.rank(), group.size());
  s.empty = rows.numel() == 0;
  s.dealt = true;
  return s.empty ? s.sampler.rows(0, group.size()).narrow(0, 0, 1) : rows;
}

ElasticTraining::State::Notice ElasticTraining::State::start_notice() const {
  Notice notice;
  if (!job->elastic() || job->group().size() == 1) {
    notice.waiting = at::full({1}, job->elastic() && job->somebody_waits(), at::kInt);
    return notice;
  }
  notice.waiting = at::full({1}, job->somebody_waits() ? 1 : 0, at::kInt);
  std::vector<at::Tensor> tensors{notice.waiting};
  notice.work = job->group().c10d()->allreduce(tensors);
  return notice;
}

bool ElasticTraining::State::somebody_waits(Notice& notice) {
  if (notice.work) notice.work->wait();
  return notice.waiting.item<int>() > 0;
}

bool ElasticTraining::step(const std::function<void()>& pass) {
  State& s = *state_;
  if (!std::exchange(s.dealt, false))
    throw Error("ElasticTraining: step() without rows of next()");
  bool waits = false;
  try {
    auto notice = s.start_notice();
    zero_grad(s.core.parameters());
    const Muted muted(s.core.parameters(), s.empty);
    pass();
    waits = State::somebody_waits(notice);
  } catch (const std::exception& error) {
    if (!s.is_lost_peer(error)) throw;
    s.form_after(base::text_of(error));
    return false;
  }
  s.apply();
  s.sampler.advance(s.job->group().size());
  s.replica.commit();
  s.somebody_waited = waits;
  return true;
}

}  // namespace brigade
