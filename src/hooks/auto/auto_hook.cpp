#include "hooks/auto/auto_hook.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iostream>
#include <mutex>

#include "base/option_spec.h"
#include "brigade/compose_hooks.h"
#include "brigade/hooks.h"
#include "brigade/process_group.h"
#include "hooks/auto/step_clock.h"
#include "hooks/factories.h"
#include "hooks/hook_text.h"
#include "hooks/stream_use.h"

namespace brigade {
namespace {

using Now = std::chrono::steady_clock;

// The first steps of a window still suffer from the hook before, and open connections.
constexpr size_t kSkipped = 2;

// "error.part0/layer.weight" gives layer.weight; empty: the key is not of an error.
std::string parameter_of(std::string_view key) {
  const std::string_view prefix = kErrorPrefix;
  if (!key.starts_with(prefix)) return "";
  key.remove_prefix(prefix.size());
  while (key.starts_with("part") && key.find('/') != std::string_view::npos)
    key.remove_prefix(key.find('/') + 1);
  return std::string(key);
}

class AutoHook : public Hook {
 public:
  AutoHook(std::string options, std::vector<AutoCandidate> candidates, MakeTuner tuner)
      : options_(std::move(options)),
        hooks_(std::move(candidates)),
        make_tuner_(std::move(tuner)) {
    hooks_.insert(hooks_.begin(), {"allreduce", make_allreduce()});
    begin();
  }

  std::string name() const override { return "auto"; }
  std::string fingerprint() const override {
    return options_.empty() ? "auto" : "auto:" + options_;
  }
  void set_parameters(std::span<const std::string> names) override {
    for (const AutoCandidate& each : hooks_) each.hook->set_parameters(names);
  }
  void begin_pass(const HookPass& pass) override {
    for (const AutoCandidate& each : hooks_) each.hook->begin_pass(pass);
  }
  void check_dtype(at::ScalarType dtype) const override {
    for (const AutoCandidate& each : hooks_) each.hook->check_dtype(dtype);
  }
  // It must see the first bucket of every step.
  bool takes_sparse() const override { return true; }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    if (bucket.index() == 0) begin_step(comm);
    const std::shared_ptr<Hook> hook = hooks_[present_].hook;
    add_owed(bucket);
    if (rests_) co_return co_await reduce_with(*hook, bucket, comm);
    const size_t number = clock_.started(Now::now());
    const bool decides =
        bucket.index() == 0 && step_in_window_ == kAutoWindow - 1 && comm.size() > 1;
    at::Tensor result;
    if (decides) {
      at::Tensor decision = decide(comm, bucket.buffer().device());
      Comm::Body body = [&](int index, Comm& lane) -> Task<void> {
        if (index == 0) {
          co_await lane.broadcast(decision, 0);
        } else {
          result = co_await reduce_with(*hook, bucket, lane);
        }
      };
      co_await comm.split(2, body);
      std::lock_guard lock(mutex_);
      decision_ = decision;
    } else {
      result = co_await reduce_with(*hook, bucket, comm);
    }
    clock_.ended(number, Now::now());
    co_return result;
  }

  HookState state() const override {
    HookState state;
    state.values["choice"] = hooks_[present_].spec;
    state.values["settled"] = settled_ ? "1" : "0";
    for (const auto& [name, error] : carried_) state.tensors[kErrorPrefix + name] = error;
    add_part_state(state, static_cast<int>(present_), hooks_[present_].hook->state());
    return state;
  }
  void load_state(const HookState& state) override {
    reset();
    const auto choice = state.values.find("choice");
    if (choice == state.values.end()) return;  // the saved hook kept none
    const auto found = std::ranges::find(hooks_, choice->second, &AutoCandidate::spec);
    if (found == hooks_.end()) {
      throw ConfigError("auto: the state was saved with the hook '" + choice->second +
                        "', which is not a candidate here");
    }
    present_ = static_cast<size_t>(found - hooks_.begin());
    found->hook->load_state(part_state(state, static_cast<int>(present_)));
    for (const auto& [key, tensor] : state.tensors) {
      if (key.starts_with(kErrorPrefix) && parameter_of(key) == key.substr(6))
        carried_[parameter_of(key)] = tensor.clone();
    }
    settled_ = state.values.at("settled") == "1";
    if (settled_) {
      tuner_->resume(present_);
      remember("goes on with " + hooks_[present_].spec);
    } else {
      leave(0);
    }
  }
  void reset() override {
    for (const AutoCandidate& each : hooks_) each.hook->reset();
    begin();
  }
  std::vector<std::string> history() const override {
    std::lock_guard lock(mutex_);
    return history_;
  }

 private:
  void begin() {
    std::vector<std::string> names;
    for (const AutoCandidate& each : hooks_) names.push_back(each.spec);
    tuner_ = make_tuner_(std::move(names));
    present_ = 0;
    settled_ = false;
    steps_ = 0;
    step_in_window_ = 0;
    carried_.clear();
    clock_.begin_window();
    std::lock_guard lock(mutex_);
    decision_ = at::Tensor();
    history_.clear();
    told_ = 0;
  }

  // Called when no bucket is under way.
  void begin_step(const Comm& comm) {
    step_in_window_ = comm.step() % kAutoWindow;  // so it is the same on all ranks
    if (step_in_window_ == 0) {
      follow();
      clock_.begin_window();
    }
    ++steps_;
    // All ranks agree: settled_ stays as it is while nothing crosses a network.
    rests_ = settled_ && present_ == 0 && stays_in_memory(comm);
    if (!rests_) clock_.begin_step(Now::now());
  }

  // Obeys what rank 0 decided in the step before.
  void follow() {
    at::Tensor decision;
    {
      std::lock_guard lock(mutex_);
      std::swap(decision, decision_);
    }
    if (!decision.defined()) return;
    decision = decision.cpu();
    const auto* values = decision.const_data_ptr<int64_t>();
    settled_ = values[1] != 0;
    leave(static_cast<size_t>(values[0]));
  }

  // Changes to another hook. What the present one has carried is added in the next step.
  void leave(size_t next) {
    if (next == present_) return;
    Hook& left = *hooks_[present_].hook;
    for (const auto& [key, error] : left.state().tensors) {
      const std::string name = parameter_of(key);
      if (!name.empty()) carried_[name] = error;
    }
    left.reset();
    present_ = next;
  }

  void add_owed(const Bucket& bucket) {
    if (carried_.empty() || bucket.buffer().is_sparse()) return;
    const std::vector<at::Tensor> gradients = bucket.gradients();
    for (size_t index = 0; index < gradients.size(); ++index) {
      const auto found = carried_.find(bucket.names()[index]);
      if (found == carried_.end()) continue;
      use_on_current_stream(found->second);
      gradients[index].view({-1}).add_(
          found->second.flatten().to(gradients[index].options()));
      carried_.erase(found);
    }
  }

  static Task<at::Tensor> reduce_with(Hook& hook, Bucket bucket, Comm& comm) {
    if (bucket.buffer().is_sparse() && !hook.takes_sparse())
      return average(std::move(bucket), comm);
    return hook.reduce(std::move(bucket), comm);
  }

  // Ranks of one host copy through its memory. A coarser hook would save some of these
  // copies, but no network traffic.
  static bool stays_in_memory(const Comm& comm) {
    return comm.layout().hosts() == 1 && !comm.works_on_device();
  }

  // Rank 0: the next window's hook, and whether it is settled. Other ranks: room for it.
  at::Tensor decide(const Comm& comm, at::Device device) {
    at::Tensor decision = at::zeros({2}, at::kLong);
    auto* values = decision.mutable_data_ptr<int64_t>();
    if (comm.rank() == 0) {
      const Decision decision = ask(comm);
      values[0] = static_cast<int64_t>(decision.hook);
      values[1] = decision.settled ? 1 : 0;
    }
    return comm.works_on_device() ? decision.to(device) : decision;
  }

  Decision ask(const Comm& comm) {
    std::optional<WindowTimes> seen = clock_.window(kSkipped);
    if (!seen) return {present_, settled_, ""};
    // The host does not wait for streams, so all of a step may be waiting time.
    if (comm.runs_inline()) {
      seen->busy = seen->exposed = seen->step;
      seen->exposed_by_bucket.clear();
    }
    seen->on_one_host = stays_in_memory(comm);
    Decision decision = tuner_->after(present_, *seen);
    if (decision.line.empty()) return decision;
    const std::string exposed = text_by_bucket(*seen);
    if (present_ == 0 && !seen->on_one_host && !exposed.empty())
      remember("exposed a step: " + exposed);
    remember(decision.line);
    if (decision.settled) tell(decision);
    return decision;
  }

  void remember(const std::string& line) {
    std::lock_guard lock(mutex_);
    history_.push_back("step " + std::to_string(steps_) + ": " + line);
  }

  // Prints each choice once.
  void tell(const Decision& decision) {
    std::lock_guard lock(mutex_);
    if (std::exchange(told_, decision.hook + 1) == decision.hook + 1) return;
    std::clog << "brigade: auto, " + history_.back() + "\n" << std::flush;
  }

  const std::string options_;
  std::vector<AutoCandidate> hooks_;  // the exact one first
  const MakeTuner make_tuner_;
  std::unique_ptr<Tuner> tuner_;  // only rank 0's counts
  StepClock clock_;
  // ---- used before a bucket's first co_await and between steps
  size_t present_ = 0;
  bool settled_ = false;
  bool rests_ = false;  // in this step it neither measures nor asks
  int64_t steps_ = 0;
  int64_t step_in_window_ = 0;
  std::map<std::string, at::Tensor> carried_;  // the residuals of a hook that was left
  // ---- used by any thread
  mutable std::mutex mutex_;
  at::Tensor decision_;
  std::vector<std::string> history_;
  size_t told_ = 0;  // 1 + the hook that was last printed as chosen
};

constexpr const char* kUsualLeast = "int8";

std::string_view last_name(std::string_view spec) {
  const std::string_view head = hook_head(spec);
  return head.substr(head.rfind('+') + 1);
}

// Null: the table has no such hook.
const HookEntry* entry_of(std::string_view name) {
  const auto table = hook_table();
  const auto found = std::ranges::find(table, name, &HookEntry::name);
  return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> no_coarser_than(const std::string& least) {
  const HookEntry* entry = entry_of(least);
  if (!entry) make_hook(least);  // throws, and lists the known names
  if (!entry || entry->tolerance < 0) {
    throw ConfigError("hook 'auto': least is '" + least + "', whose result is no mean");
  }
  std::vector<const HookEntry*> rows;
  for (const HookEntry& row : hook_table()) {
    if (!row.as_candidate.empty() && row.tolerance <= entry->tolerance)
      rows.push_back(&row);
  }
  std::ranges::stable_sort(rows, {}, &HookEntry::tolerance);
  std::vector<std::string> specs;
  for (const HookEntry* row : rows) specs.emplace_back(row->as_candidate);
  return specs;
}

void check_candidate(const std::string& spec) {
  const auto refuse = [&](const char* why) {
    throw ConfigError("hook 'auto': '" + spec + "' can't be a candidate: " + why);
  };
  const HookEntry* entry = entry_of(last_name(spec));
  if (entry && entry->tolerance < 0) refuse("its result is no mean");
  if (entry && entry->name == "auto") refuse("it chooses itself");
  if (hook_head(spec).find("node+") != std::string_view::npos)
    refuse("not all ranks have what it keeps");
}

std::vector<std::string> specs_in(const std::string& among) {
  std::vector<std::string> specs;
  for (const std::string_view word : split_outside(among, '/')) {
    specs.emplace_back(word);
    check_candidate(specs.back());
  }
  return specs;
}

}  // namespace

std::shared_ptr<Hook> make_auto(std::string options, std::vector<AutoCandidate> candidates,
                                MakeTuner tuner) {
  return std::make_shared<AutoHook>(std::move(options), std::move(candidates),
                                    std::move(tuner));
}

std::shared_ptr<Hook> make_auto_of(std::string_view options) {
  constexpr std::array<std::string_view, 2> known{"least", "among"};
  const base::OptionSpec given("auto", options, known);
  const std::string least = given.text("least", ""), among = given.text("among", "");
  if (!least.empty() && !among.empty())
    throw ConfigError("hook 'auto' takes either least or among");
  const auto specs = among.empty() ? no_coarser_than(least.empty() ? kUsualLeast : least)
                                   : specs_in(among);
  std::vector<AutoCandidate> candidates;
  for (const std::string& spec : specs) candidates.push_back({spec, make_hook(spec)});
  return make_auto(std::string(options), std::move(candidates));
}

}  // namespace brigade
