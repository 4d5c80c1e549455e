#include "elastic/job.h"

#include <charconv>
#include <sstream>

#include "base/exception_text.h"
#include "brigade/error.h"

namespace brigade {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultLimit{300'000};
// The limit of one wait of the listener; it is woken when it is no longer needed.
constexpr milliseconds kListen = std::chrono::hours(24);
// The time that the launcher may take beyond what it gives other workers.
constexpr milliseconds kLauncherSlack{120'000};

std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');)
    numbers.push_back(group::parse_int("a member", part, 0, INT_MAX));
  return numbers;
}

}  // namespace

ElasticJob::State::State(ProcessGroup fixed) : group_(std::move(fixed)) {}

ElasticJob::State::State(const ElasticJobOptions& options, int number)
    : backend_(options.backend) {
  const group::Lookup lookup = group::process_environment();
  const group::Environment environment = group::read_environment(lookup);
  timeout_ = options.timeout ? *options.timeout
                             : group::read_timeout(lookup).value_or(kDefaultLimit);
  if (timeout_.count() <= 0)
    throw ConfigError("timeout=" + std::to_string(timeout_.count()) +
                      " ms: expected more than 0");
  device_ = environment.local_rank.value_or(0);
  point_ = group::rendezvous("env://", lookup, environment, timeout_);
  group::GenerationPlan alone;
  alone.store = point_.store;
  alone.prefix = "elastic/alone";
  alone.backend = backend_;
  alone.timeout = timeout_;
  alone.device = device_;
  alone.abort = std::make_shared<group::AbortSwitch>();
  group_ = group::join_generation(alone);
  mail_ = std::make_unique<group::WorkerMailbox>(point_.store, number);
  listener_ = std::thread([this] { listen(); });
}

ElasticJob::State::~State() {
  if (!mail_) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  try {
    mail_->wake();
  } catch (const std::exception&) {
    // The store is gone, so the listener has ended, or ends within its own limit.
  }
  listener_.join();
}

void ElasticJob::State::listen() {
  try {
    while (true) {
      const auto text = mail_->receive(kListen);
      {
        std::lock_guard lock(mutex_);
        if (stop_) return;
      }
      if (text) read(*text);
    }
  } catch (const std::exception& error) {
    lose(base::text_of(error));
  }
}

void ElasticJob::State::lose(const std::string& why) {
  std::shared_ptr<group::AbortSwitch> abort;
  {
    std::lock_guard lock(mutex_);
    lost_ = why;
    abort = place_.abort;
  }
  changed_.notify_all();
  if (abort) abort->abort("the launcher is gone: " + why);
}

void ElasticJob::State::read(const std::string& text) {
  std::istringstream words(text);
  std::string what;
  int generation = -1;
  words >> what >> generation;
  std::shared_ptr<group::AbortSwitch> abort;
  {
    std::lock_guard lock(mutex_);
    if (what == "place") {
      std::string list;
      place_.generation = generation;
      words >> place_.rank >> list >> std::ws;
      place_.why.clear();
      std::getline(words, place_.why);
      place_.members = numbers_of(list);
      place_.abort = std::make_shared<group::AbortSwitch>();
      place_is_new_ = true;
      wanted_ = false;
    }
    if (what == "wanted" && generation == place_.generation) wanted_ = true;
    if (what == "finished") finished_ = true;
    if (what == "abort" && generation == place_.generation) abort = place_.abort;
  }
  changed_.notify_all();
  if (!abort) return;
  std::string why;
  std::getline(words >> std::ws, why);
  abort->abort(why);
  mail_->send("heard " + std::to_string(generation));
}

void ElasticJob::State::leave(const std::string& why) {
  Assignment place;
  {
    std::lock_guard lock(mutex_);
    place = joined_;
  }
  if (!place.abort) return;
  if (!why.empty()) {
    std::string line = why.substr(0, why.find('\n'));
    mail_->send("failed " + std::to_string(place.generation) + " " + line);
  }
  place.abort->abort(why.empty() ? "the generation is over" : why);
}

std::optional<ElasticJob::State::Assignment> ElasticJob::State::wait_for_assignment(
    int64_t step, bool done) {
  mail_->send("ready " + std::to_string(step) + (done ? " 1" : " 0"));
  // Each of the others may take that long to come, and as long to be replaced.
  const auto limit = 2 * timeout_ + kLauncherSlack;
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return place_is_new_ || finished_ || !lost_.empty(); };
  if (!changed_.wait_for(lock, limit, ready))
    throw TimeoutError("elastic: the launcher has given no place for " +
                       std::to_string(limit.count()) + " ms");
  if (place_is_new_) {
    place_is_new_ = false;
    return place_;
  }
  if (finished_) return std::nullopt;
  throw RendezvousError("elastic: the launcher is gone: " + lost_);
}

void ElasticJob::State::join(const Assignment& place) {
  {
    std::lock_guard lock(mutex_);
    joined_ = place;
  }
  group::GenerationPlan plan;
  plan.store = point_.store;
  plan.host = point_.host;
  plan.prefix = "elastic/generation_" + std::to_string(place.generation);
  plan.rank = place.rank;
  plan.size = static_cast<int>(place.members.size());
  plan.device = device_;
  plan.backend = backend_;
  plan.timeout = timeout_;
  plan.abort = place.abort;
  group_ = group::join_generation(plan);
}

void ElasticJob::State::say_formed() {
  mail_->send("formed " + std::to_string(generation()));
}

int ElasticJob::State::generation() const {
  std::lock_guard lock(mutex_);
  return elastic() ? joined_.generation : 0;
}

bool ElasticJob::State::aborted() const {
  std::lock_guard lock(mutex_);
  return joined_.abort && joined_.abort->aborted();
}

bool ElasticJob::State::newcomer_waits() const {
  std::lock_guard lock(mutex_);
  return wanted_;
}

const ProcessGroup& ElasticJob::group() const { return state_->group(); }
int ElasticJob::generation() const { return state_->generation(); }
bool ElasticJob::is_elastic() const { return state_->elastic(); }

ElasticJob join_job(const ElasticJobOptions& options) {
  const auto number = group::process_environment()(group::kWorkerNumber);
  if (number) {
    return ElasticJob(std::make_shared<ElasticJob::State>(
        options, group::parse_int(group::kWorkerNumber, *number, 0, INT_MAX)));
  }
  ProcessGroupOptions plain{.backend = options.backend};
  plain.timeout = options.timeout;
  return ElasticJob(std::make_shared<ElasticJob::State>(init_process_group(plain)));
}

}  // namespace brigade
