#include "hook_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "brigade/error.h"
#include "engine/engine.h"
#include "group/check_same.h"
#include "group/store/timed_store.h"
#include "interruptible.h"
#include "native_hook.h"
#include "torch_port/typed_wait.h"

namespace brigade::python {
namespace {

using Clock = std::chrono::steady_clock;

// A rank may be this much behind before the others look where it is.
constexpr std::chrono::milliseconds kPatience{3000};
constexpr std::chrono::milliseconds kLook{20};
// The first rank that can decide writes whether the bucket is averaged.
const std::string kAllSpoke = "all spoke";
const std::string kAverage = "average";
const std::string kNone = "none of brigade's";

}  // namespace

struct HookCheck::State {
  // The first counts the hooks that each rank has set on such a model.
  c10::intrusive_ptr<c10d::Store> counts;
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string hook;

  static std::string key(int rank) { return "hook/" + std::to_string(rank); }
  // The hook of each rank; none if the rank has not set one.
  std::vector<std::optional<std::string>> words() const {
    std::vector<std::optional<std::string>> found(static_cast<size_t>(size));
    for (int each = 0; each < size; ++each) {
      if (store->check({key(each)})) found[each] = store->get_to_str(key(each));
    }
    return found;
  }
  // Counts this check for ranks without it too, or their next one would meet this one.
  void pass_over(const std::vector<std::optional<std::string>>& words) const {
    const auto spoke = [](const auto& word) { return word.has_value(); };
    if (std::ranges::find_if(words, spoke) - words.begin() != rank) return;
    for (int each = 0; each < size; ++each) {
      if (!words[each]) counts->add(std::to_string(each), 1);
    }
  }
  std::string decide(const std::string& mine) const {
    return store->compareSet("decision", std::string(), mine);
  }
  // The last rank deletes the keys, because until then others may still have to read.
  void forget() const {
    if (store->add("left", 1) < size) return;
    for (int each = 0; each < size; ++each) store->deleteKey(key(each));
    store->deleteKey("decision");
    store->deleteKey("left");
  }
};

HookCheck::HookCheck(c10d::ProcessGroup& group, const std::string& model,
                     std::string hook) {
  auto store = group.getStore();
  if (!store || group.getSize() == 1) return;
  state_ = std::make_unique<State>();
  state_->rank = group.getRank();
  state_->size = group.getSize();
  state_->hook = std::move(hook);
  auto watchdog = std::make_shared<group::Watchdog>(
      "rank " + std::to_string(state_->rank) + ": the store of the model's group",
      timeout_of(group));
  store = c10::make_intrusive<group::TimedStore>(store, std::move(watchdog));
  const std::string prefix = "brigade/hooks_of/" + model + "/";
  state_->counts = c10::make_intrusive<c10d::PrefixStore>(prefix + "count", store);
  const auto count = state_->counts->add(std::to_string(state_->rank), 1);
  state_->store = c10::make_intrusive<c10d::PrefixStore>(prefix + std::to_string(count),
                                                         std::move(store));
  state_->store->set(State::key(state_->rank), state_->hook);
}

HookCheck::~HookCheck() = default;

namespace {

using Words = std::vector<std::optional<std::string>>;

bool all_spoke(const Words& words) {
  return std::ranges::all_of(words, [](const auto& word) { return word.has_value(); });
}

// `silent`: says what is known of ranks that have not set a hook.
[[noreturn]] void throw_different(const Words& words, const std::string& silent) {
  std::vector<std::string> shown;
  for (const auto& word : words) shown.push_back(word ? "'" + *word + "'" : silent);
  throw MismatchError(group::describe_difference("hooks", shown, engine::kSameHook));
}

// Averages as a Reducer without a hook does, but waits in short steps.
void average_with_all(c10d::ProcessGroup& group, const at::Tensor& bucket) {
  std::vector<at::Tensor> copy{bucket.is_sparse() ? bucket / group.getSize()
                                                  : bucket.clone().div_(group.getSize())};
  const auto work = group.allreduce(copy);
  const auto deadline = Clock::now() + timeout_of(group);
  while (!work->isCompleted() && Clock::now() < deadline) {
    check_signals();
    std::this_thread::sleep_for(kLook);
  }
  torch_port::wait(*work, kNoTimeout, group);
}

}  // namespace

void meet(const ProcessGroup& group, const std::string& place,
          const std::function<void()>& look) {
  if (group.size() == 1) return;
  c10d::Store& store = *group.store();
  const auto key = [&](int rank) { return place + "/" + std::to_string(rank); };
  store.set(key(group.rank()), std::string("here"));
  std::vector<int> missing;
  for (int rank = 0; rank < group.size(); ++rank) missing.push_back(rank);
  const auto deadline = Clock::now() + group.timeout();
  std::chrono::milliseconds pause{1};
  for (;; pause = std::min(2 * pause, kLook)) {
    std::erase_if(missing, [&](int rank) { return store.check({key(rank)}); });
    if (missing.empty()) return;
    if (Clock::now() > deadline) {
      throw TimeoutError("rank " + std::to_string(group.rank()) + ": ranks " +
                         c10::Join(", ", missing) +
                         " did not come to a backward pass within " +
                         std::to_string(group.timeout().count()) + " ms");
    }
    look();
    check_signals();
    std::this_thread::sleep_for(pause);
  }
}

void HookCheck::check(c10d::ProcessGroup& group, const at::Tensor& bucket,
                      const std::function<std::vector<int>()>& busy) {
  if (!state_) return;
  const auto impatient = Clock::now() + kPatience;
  Words words = state_->words();
  while (!all_spoke(words) && Clock::now() < impatient) {
    check_signals();
    std::this_thread::sleep_for(kLook);
    words = state_->words();
  }
  if (!all_spoke(words) && busy) {
    const std::vector<int> found = busy();
    words = state_->words();
    const bool behind = std::ranges::any_of(found, [&](int rank) { return !words[rank]; });
    if (behind) {
      state_->pass_over(words);
      throw_different(words, "the hook of before");
    }
  }
  if (state_->decide(all_spoke(words) ? kAllSpoke : kAverage) == kAverage) {
    average_with_all(group, bucket);
    words = state_->words();
  }
  const bool equal =
      std::ranges::all_of(words, [&](const auto& word) { return word == state_->hook; });
  if (!equal) {
    state_->pass_over(words);
    throw_different(words, kNone);
  }
  state_->forget();
}

}  // namespace brigade::python
