// Vocabulary. A *branch* is a hook with all its rules. A *part* is its share of a bucket.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/buffer_pool.h"
#include "brigade/compose_hooks.h"
#include "brigade/hooks.h"
#include "hooks/hook_text.h"

namespace brigade {
namespace {

struct Branch {
  std::shared_ptr<Hook> hook;
  std::string label;  // "*.bias|*norm*=fp16"
  BucketSequence sequence;
};

struct RuleBucket {
  Branch* branch;
  std::vector<size_t> places;
};

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.is_sparse() ? static_cast<int64_t>(tensor._values().nbytes())
                            : static_cast<int64_t>(tensor.nbytes());
}

void check(const std::vector<Rule>& rules) {
  if (rules.empty())
    throw ConfigError("rules: there are none; {\"*\", hook} is one for every parameter");
  for (const Rule& rule : rules) {
    if (rule.pattern.empty()) throw ConfigError("rules: a rule has no pattern");
    if (!rule.hook) throw ConfigError("rules: '" + rule.pattern + "' has no hook");
    if (rule.pattern == "*" && &rule != &rules.back()) {
      throw ConfigError("rules: no parameter reaches '" + (&rule + 1)->pattern +
                        "': it stands behind '*', which fits every name");
    }
  }
}

class Rules : public Hook, public RevertibleHook {
 public:
  explicit Rules(std::vector<Rule> rules) : rules_(std::move(rules)) {
    check(rules_);
    for (const Rule& rule : rules_) {
      const auto found = std::ranges::find(branches_, rule.hook, &Branch::hook);
      branch_of_rule_.push_back(static_cast<size_t>(found - branches_.begin()));
      if (found == branches_.end()) {
        branches_.push_back({rule.hook, rule.pattern, {}});
      } else {
        found->label += "|" + rule.pattern;
      }
    }
    for (Branch& branch : branches_) branch.label += "=" + branch.hook->name();
  }

  std::string name() const override { return "rules"; }
  std::string fingerprint() const override {
    std::string text = "rules:";
    for (const Rule& rule : rules_) {
      text += (&rule == &rules_.front() ? "" : ";") + rule.pattern + "=" +
              rule.hook->fingerprint();
    }
    return text;
  }

  void set_parameters(std::span<const std::string> names) override {
    std::map<const Branch*, std::vector<std::string>> of_branch;
    for (const std::string& name : names) of_branch[&branch_for(name)].push_back(name);
    note_idle(names);
    for (Branch& branch : branches_) {
      const std::vector<std::string>& own = of_branch[&branch];
      branch.hook->set_parameters(own);
      branch.sequence.expect(static_cast<int64_t>(own.size()));
    }
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    const std::vector<RuleBucket> parts = divide(bucket);
    if (parts.size() == 1) {
      Bucket whole = parts[0].branch->sequence.next(bucket);
      co_return co_await reduce_with(*parts[0].branch, whole, comm);
    }
    Comm::Body body = [&](int index, Comm& lane) {
      return reduce_part(parts[static_cast<size_t>(index)], bucket, lane);
    };
    co_await comm.split(static_cast<int>(parts.size()), body);
    co_return bucket.buffer();
  }

  // All buckets must come here, so that every branch knows its last; see reduce_with.
  bool takes_sparse() const override { return true; }
  void begin_pass(const HookPass& pass) override {
    for (const Branch& branch : branches_) branch.hook->begin_pass(pass);
  }
  // A parameter's branch is known only with its bucket, so one willing branch is enough.
  void check_dtype(at::ScalarType dtype) const override {
    std::exception_ptr refused;
    for (const Branch& branch : branches_) {
      try {
        return branch.hook->check_dtype(dtype);
      } catch (const ConfigError&) {
        refused = std::current_exception();
      }
    }
    std::rethrow_exception(refused);
  }

  HookState state() const override {
    HookState state;
    for (size_t index = 0; index < branches_.size(); ++index)
      add_part_state(state, static_cast<int>(index), branches_[index].hook->state());
    return state;
  }
  void load_state(const HookState& state) override {
    for (size_t index = 0; index < branches_.size(); ++index)
      branches_[index].hook->load_state(part_state(state, static_cast<int>(index)));
  }
  void reset() override {
    for (const Branch& branch : branches_) branch.hook->reset();
  }
  bool commit() override {
    return std::ranges::all_of(
        branches_, [](const Branch& branch) { return commit_hook(*branch.hook); });
  }
  void revert() override {
    for (const Branch& branch : branches_) revert_hook(*branch.hook);
  }
  std::vector<std::string> history() const override {
    std::vector<std::string> all;
    for (const std::string& pattern : idle_)
      all.push_back("the rule '" + pattern + "' decides for no parameter of this model");
    for (const Branch& branch : branches_) {
      for (const std::string& line : branch.hook->history())
        all.push_back(branch.label + ": " + line);
    }
    return all;
  }

 private:
  Branch& branch_for(const std::string& name) {
    return branches_[branch_of_rule_[rule_for(name)]];
  }

  size_t rule_for(const std::string& name) const {
    for (size_t index = 0; index < rules_.size(); ++index) {
      if (fits(rules_[index].pattern, name)) return index;
    }
    throw ConfigError("rules: no rule fits the parameter '" + name +
                      "'; a last rule '*=HOOK' fits all that are left");
  }

  // Rules for many models may contain some that one model does not need. But a name as
  // DDP's own named_parameters() shows it is a mistake.
  void note_idle(std::span<const std::string> names) {
    std::set<size_t> used;
    for (const std::string& name : names) used.insert(rule_for(name));
    idle_.clear();
    for (size_t index = 0; index < rules_.size(); ++index) {
      const std::string& pattern = rules_[index].pattern;
      if (used.contains(index)) continue;
      if (pattern.starts_with("module."))
        throw ConfigError("rules: '" + pattern +
                          "' fits no parameter; names are the model's own, without the "
                          "'module.' of DistributedDataParallel: '" +
                          pattern.substr(7) + "'");
      idle_.push_back(pattern);
    }
  }

  // Divides a bucket by branch, in the order of the rules.
  std::vector<RuleBucket> divide(const Bucket& bucket) {
    std::vector<RuleBucket> parts;
    for (Branch& branch : branches_) {
      branch.sequence.pass(bucket);
      parts.push_back({&branch, {}});
    }
    for (size_t place = 0; place < bucket.names().size(); ++place) {
      const Branch& branch = branch_for(bucket.names()[place]);
      parts[static_cast<size_t>(&branch - branches_.data())].places.push_back(place);
    }
    std::erase_if(parts, [](const RuleBucket& part) { return part.places.empty(); });
    return parts;
  }

  Task<at::Tensor> reduce_with(Branch& branch, Bucket bucket, Comm& comm) {
    const at::Tensor buffer = bucket.buffer();
    branch.hook->check_dtype(buffer.scalar_type());
    TrafficLabel counted(comm, branch.label, bytes_of(buffer));
    if (buffer.is_sparse() && !branch.hook->takes_sparse())
      co_return co_await average(bucket, comm);
    co_return co_await branch.hook->reduce(bucket, comm);
  }

  Task<void> reduce_part(const RuleBucket& part, Bucket whole, Comm& comm) {
    at::Tensor memory, values;
    if (!BucketPart::is_view(part.places)) {
      const at::Tensor& buffer = whole.buffer();
      const int64_t elements = BucketPart::elements(whole, part.places);
      memory = pool_.take(elements * buffer.element_size(), buffer.device());
      values = memory.view(buffer.scalar_type());
    }
    BucketPart own(whole, part.places, values);
    Bucket bucket = part.branch->sequence.next(own.bucket());
    own.put_back(co_await reduce_with(*part.branch, bucket, comm));
    if (memory.defined()) pool_.give_back(memory);
  }

  const std::vector<Rule> rules_;
  std::vector<Branch> branches_;
  std::vector<size_t> branch_of_rule_;
  std::vector<std::string> idle_;  // patterns of rules that decide for no parameter
  base::BufferPool pool_;          // for parts whose gradients are not contiguous
};

}  // namespace

std::shared_ptr<Hook> rules(std::vector<Rule> list) {
  return std::make_shared<Rules>(std::move(list));
}

}  // namespace brigade
