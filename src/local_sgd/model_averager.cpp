#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "brigade/local_sgd.h"

namespace brigade {
namespace {

// Small parameters share a message, up to about this many values.
constexpr int64_t kMessage = int64_t{1} << 22;

[[noreturn]] void refuse(const std::string& what, const std::string& value,
                         const std::string& rule) {
  throw ConfigError(what + " is " + value + ", but " + rule);
}

const ProcessGroup& checked(const ProcessGroup& group) {
  if (!group) {
    refuse("the averager's group", "empty",
           "must be the ranks to average over: what init_process_group() gave");
  }
  return group;
}

void check_parameter(const at::Tensor& parameter, size_t index) {
  const std::string which = "average_parameters: parameter " + std::to_string(index);
  if (!parameter.defined())
    refuse(which, "undefined", "must be a tensor; leave it out on every rank");
  if (!at::isFloatingType(parameter.scalar_type()) || parameter.layout() != at::kStrided) {
    refuse(which, c10::str(parameter.layout(), " ", at::toString(parameter.scalar_type())),
           "must be a dense tensor of floating point; leave it out on every rank");
  }
}

at::ScalarType sum_dtype(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Parameters of one kind that are sent in one message, one after the other.
using Message = std::vector<at::Tensor>;

bool belongs(const Message& message, int64_t length, const at::Tensor& parameter) {
  return message.empty() || (sum_dtype(message.front()) == sum_dtype(parameter) &&
                             message.front().device() == parameter.device() &&
                             length + parameter.numel() <= kMessage);
}

std::vector<Message> messages_of(const std::vector<at::Tensor>& parameters) {
  std::vector<Message> all(1);
  int64_t length = 0;
  for (const at::Tensor& parameter : parameters) {
    if (!belongs(all.back(), length, parameter)) {
      all.emplace_back();
      length = 0;
    }
    all.back().push_back(parameter);
    length += parameter.numel();
  }
  return all;
}

// A single contiguous parameter of the right type needs no copy.
bool is_its_own_message(const Message& message) {
  return message.size() == 1 && message[0].is_contiguous() &&
         message[0].scalar_type() == sum_dtype(message[0]);
}

void average(at::Tensor values, const ProcessGroup& group) {
  values.div_(group.size());  // before the sum, so that none overflows
  group.all_reduce(values);
}

int64_t average(const Message& message, const ProcessGroup& group) {
  if (is_its_own_message(message)) {
    average(message[0].detach(), group);
    return static_cast<int64_t>(message[0].nbytes());
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : message)
    parts.push_back(parameter.detach().to(sum_dtype(parameter)).flatten());
  at::Tensor flat = at::cat(parts);
  average(flat, group);
  int64_t begin = 0;
  for (at::Tensor parameter : message) {
    parameter.copy_(flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  return static_cast<int64_t>(flat.nbytes());
}

std::string fingerprint_of(const PeriodicModelAveragerOptions& options) {
  return "periodic:period=" + std::to_string(options.period) +
         ",warmup=" + std::to_string(options.warmup_steps);
}

std::string fingerprint_of(const HierarchicalModelAveragerOptions& options) {
  std::string text = "hierarchical:";
  for (const AveragingLevel& level : options.levels) {
    text += (text.back() == ':' ? "" : ";") + std::to_string(level.period) + "x" +
            std::to_string(level.group_size);
  }
  return text + ",warmup=" + std::to_string(options.warmup_steps);
}

const PeriodicModelAveragerOptions& checked(const PeriodicModelAveragerOptions& options) {
  if (options.period < 1) {
    refuse("PeriodicModelAverager: period", std::to_string(options.period),
           "must be 1 or more: the number of steps from one mean to the next");
  }
  if (options.period == 1) {
    TORCH_WARN(
        "PeriodicModelAverager: period is 1: averaging parameters at every step "
        "sends as much as averaging gradients, and overlaps with nothing. Use a "
        "longer period, or DistributedDataParallel alone");
  }
  return options;
}

void check_level(const std::vector<AveragingLevel>& levels, size_t index, int ranks) {
  const std::string which =
      "HierarchicalModelAverager: levels[" + std::to_string(index) + "]";
  const AveragingLevel& level = levels[index];
  if (level.period < 1)
    refuse(which + ".period", std::to_string(level.period), "must be 1 or more");
  if (level.group_size < 1 || ranks % level.group_size != 0) {
    refuse(which + ".group_size", std::to_string(level.group_size),
           "must divide the number of ranks, " + std::to_string(ranks));
  }
  if (index == 0) return;
  const AveragingLevel& before = levels[index - 1];
  if (level.period <= before.period) {
    refuse(which + ".period", std::to_string(level.period),
           "must be more than the level's before, " + std::to_string(before.period) +
               "; order the levels by period");
  }
  if (level.group_size < before.group_size) {
    refuse(which + ".group_size", std::to_string(level.group_size),
           "must not be less than the level's before, " +
               std::to_string(before.group_size) + "; larger groups meet less often");
  }
}

const HierarchicalModelAveragerOptions& checked(
    const HierarchicalModelAveragerOptions& options, int ranks) {
  const auto& levels = options.levels;
  if (levels.empty()) {
    refuse("HierarchicalModelAverager: levels", "empty",
           "must have at least one: {{.period = 16, .group_size = " +
               std::to_string(ranks) + "}}");
  }
  for (size_t index = 0; index < levels.size(); ++index) check_level(levels, index, ranks);
  if (levels.back().group_size != ranks) {
    refuse("HierarchicalModelAverager: the last group_size",
           std::to_string(levels.back().group_size),
           "must be the number of ranks, " + std::to_string(ranks) +
               ", or they would never all meet");
  }
  if (levels.back().period == 1) {
    TORCH_WARN(
        "HierarchicalModelAverager: the largest period is 1: averaging parameters "
        "at every step sends as much as averaging gradients, and overlaps with "
        "nothing. Use longer periods, or DistributedDataParallel alone");
  }
  return options;
}

}  // namespace

int64_t average_parameters(const std::vector<at::Tensor>& parameters,
                           const ProcessGroup& group) {
  for (size_t index = 0; index < parameters.size(); ++index)
    check_parameter(parameters[index], index);
  if (checked(group).size() == 1 || parameters.empty()) return 0;
  at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const Message& message : messages_of(parameters)) bytes += average(message, group);
  return 2 * bytes * (group.size() - 1) / group.size();
}

ModelAverager::ModelAverager(ProcessGroup group, int64_t warmup_steps,
                             std::string fingerprint)
    : group_(std::move(group)),
      warmup_steps_(warmup_steps),
      fingerprint_(std::move(fingerprint)) {
  if (warmup_steps < 0)
    refuse("warmup_steps", std::to_string(warmup_steps), "must be 0 or more");
  checked(group_).check_same("averagers", fingerprint_, "give every rank the same options");
}

bool ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const ProcessGroup over = step_ >= warmup_steps_ ? due(step_) : ProcessGroup();
  if (over) bytes_sent_ += brigade::average_parameters(parameters, over);
  ++step_;
  return static_cast<bool>(over);
}

void ModelAverager::average_now(const std::vector<at::Tensor>& parameters) {
  bytes_sent_ += brigade::average_parameters(parameters, group_);
}

void ModelAverager::set_step(int64_t step) {
  if (step < 0) refuse("step", std::to_string(step), "must be 0 or more");
  step_ = step;
}

PeriodicModelAverager::PeriodicModelAverager(ProcessGroup group,
                                             PeriodicModelAveragerOptions options)
    : ModelAverager(std::move(group), options.warmup_steps,
                    fingerprint_of(checked(options))),
      period_(options.period) {}

ProcessGroup PeriodicModelAverager::due(int64_t step) const {
  return (step - warmup_steps()) % period_ == 0 ? group() : ProcessGroup();
}

HierarchicalModelAverager::HierarchicalModelAverager(
    ProcessGroup group, HierarchicalModelAveragerOptions options)
    : ModelAverager(group, options.warmup_steps,
                    fingerprint_of(checked(options, checked(group).size()))),
      levels_(std::move(options.levels)) {
  for (const AveragingLevel& level : levels_) {
    groups_.push_back(
        level.group_size == group.size() ? group : group.new_subgroups(level.group_size));
  }
}

ProcessGroup HierarchicalModelAverager::due(int64_t step) const {
  for (size_t level = levels_.size(); level-- > 0;) {
    if (step % levels_[level].period == 0) return groups_[level];
  }
  return {};
}

}  // namespace brigade
