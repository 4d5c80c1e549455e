#include <algorithm>
#include <cmath>

#include "ddp/core_state.h"
#include "torch_port/nccl_backend.h"
#include "torch_port/reducer.h"

namespace brigade {
namespace {

constexpr int64_t kFirstBucketBytes = 1 << 20;
constexpr double kBucketMiB = 25;

int64_t bytes_of(const char* field, double mib) {
  if (!(mib > 0) || !std::isfinite(mib)) {
    throw ConfigError(std::string(field) + " is " + std::to_string(mib) +
                      ", but must be a size in MiB greater than 0, such as 25");
  }
  return std::max<int64_t>(1, static_cast<int64_t>(mib * 1024 * 1024));
}

torch_port::ReducerOptions reducer_options(const DdpOptions& options) {
  torch_port::ReducerOptions out;
  out.bucket_cap = bytes_of("bucket_cap_mb", options.bucket_cap_mb.value_or(kBucketMiB));
  out.first_bucket_cap = options.bucket_cap_mb ? out.bucket_cap : kFirstBucketBytes;
  for (double mib : options.bucket_cap_mb_list) {
    out.bucket_caps.push_back(bytes_of("bucket_cap_mb_list", mib));
  }
  if (!out.bucket_caps.empty()) {
    out.bucket_cap = *std::max_element(out.bucket_caps.begin(), out.bucket_caps.end());
    out.first_bucket_cap = out.bucket_cap;
  }
  out.find_unused_parameters = options.find_unused_parameters;
  out.gradient_as_bucket_view = options.gradient_as_bucket_view;
  out.static_graph = options.static_graph;
  out.skip_all_reduce_unused_params = options.skip_all_reduce_unused_params;
  return out;
}

// Turns buckets of names into indices into `names`. Throws unless each occurs once.
std::vector<std::vector<size_t>> bucket_indices(
    const std::vector<std::vector<std::string>>& by_name,
    const std::vector<std::string>& names) {
  std::vector<std::vector<size_t>> buckets;
  std::set<std::string> missing(names.begin(), names.end());
  for (const auto& bucket : by_name) {
    auto& indices = buckets.emplace_back();
    for (const std::string& name : bucket) {
      if (!missing.erase(name)) {
        throw ConfigError("first_buckets names '" + name +
                          "', which the model does not train, or names it twice");
      }
      indices.push_back(std::find(names.begin(), names.end(), name) - names.begin());
    }
  }
  if (!buckets.empty() && !missing.empty()) {
    throw ConfigError("first_buckets lacks the parameter '" + *missing.begin() + "'");
  }
  return buckets;
}

void check_ignored_names(const DdpModel& model, const std::set<std::string>& ignored) {
  std::set<std::string> known;
  for (const DdpParameter& parameter : model.parameters) known.insert(parameter.name);
  if (model.buffers) {
    for (const auto& [name, buffer] : model.buffers()) known.insert(name);
  }
  for (const std::string& name : ignored) {
    if (!known.contains(name)) {
      throw ConfigError("parameters_to_ignore names '" + name +
                        "', but the model has no parameter or buffer of that name");
    }
  }
}

DdpModel without_ignored(DdpModel model, const std::set<std::string>& ignored) {
  std::erase_if(model.parameters,
                [&](const DdpParameter& p) { return ignored.contains(p.name); });
  if (!model.buffers) return model;
  auto all = std::move(model.buffers);
  auto kept = [all = std::move(all), ignored] {
    NamedBuffers buffers = all();
    std::erase_if(buffers, [&](const auto& b) { return ignored.contains(b.first); });
    return buffers;
  };
  // Having no buffers at all is the common case; then no pass need ask for them.
  model.buffers = nullptr;
  if (!kept().empty()) model.buffers = std::move(kept);
  return model;
}

std::vector<std::string> trained_names(const DdpModel& model, const DdpOptions& options) {
  std::vector<std::string> names;
  for (const DdpParameter& p : model.parameters) {
    const bool trained = p.tensor.defined() && p.tensor.requires_grad();
    if (trained && !options.parameters_to_ignore.contains(p.name)) names.push_back(p.name);
  }
  return names;
}

// CUDA's kernels keep statistics in float beside half-precision values.
void check_batch_norms(const DdpModel& model, const MixedPrecision& dtypes) {
  const bool halves =
      dtypes.param_dtype == at::kHalf || dtypes.param_dtype == at::kBFloat16;
  const bool on_cpu = std::ranges::any_of(model.parameters, [](const DdpParameter& each) {
    return each.tensor.defined() && each.tensor.is_cpu();
  });
  if (model.batch_norms.empty() || !halves || dtypes.buffer_dtype || !on_cpu) return;
  throw ConfigError(c10::str("mixed_precision: '", model.batch_norms.front(),
                             "' normalizes batches: LibTorch wants its "
                             "running statistics in the dtype of its parameters, ",
                             *dtypes.param_dtype, "; set buffer_dtype to that too"));
}

// Says why this rank cannot train its model; empty: it can.
std::string refusal_of(const DdpModel& model, const DdpOptions& options) try {
  reducer_options(options);
  if (options.mixed_precision) check(*options.mixed_precision);
  if (options.check_replicas_every < 0) {
    return "check_replicas_every is " + std::to_string(options.check_replicas_every) +
           ", but must be a number of passes, or 0 for never";
  }
  if (options.mixed_precision) check_batch_norms(model, *options.mixed_precision);
  check_ignored_names(model, options.parameters_to_ignore);
  bucket_indices(options.first_buckets, trained_names(model, options));
  const auto& parameters = model.parameters;
  std::set<at::DeviceType> devices;
  bool trains = false;
  for (const DdpParameter& p : parameters) {
    if (!p.tensor.defined()) return "parameter '" + p.name + "' is not initialized";
    if (options.parameters_to_ignore.contains(p.name)) continue;
    devices.insert(p.tensor.device().type());
    trains |= p.tensor.requires_grad();
  }
  if (!trains) {
    return "no parameter of the model needs a gradient (of " +
           std::to_string(parameters.size()) + "; " +
           std::to_string(options.parameters_to_ignore.size()) +
           " ignored), so there is nothing to train in parallel: use it without "
           "DistributedDataParallel, or call requires_grad_(true) first";
  }
  if (devices.size() > 1) {
    return "the model's parameters are on several types of devices; move all of them to "
           "one";
  }
  return {};
} catch (const ConfigError& error) {
  return error.what();
}

std::string quoted(const std::vector<std::string>& names,
                   const std::vector<size_t>& which) {
  std::string text;
  for (size_t index : which) {
    text += (text.empty() ? "'" : ", '") + names.at(index) + "'";
  }
  return text;
}

[[noreturn]] void throw_missing_gradients(const std::string& names) {
  throw Error("the previous backward() did not finish: it gave no gradient to " + names +
              ". If the loss does not always depend on every parameter, set "
              "find_unused_parameters (or static_graph, where the set never changes); if "
              "forward() returns a type of your own, its collect_tensors must give every "
              "tensor");
}

}  // namespace

// ---- State ------------------------------------------------------------------------------

void DdpCore::State::make_reducer() { make_reducer(options.first_buckets); }

void DdpCore::State::make_reducer(const std::vector<std::vector<std::string>>& buckets) {
  const auto first_buckets = bucket_indices(buckets, names);
  restore_full_precision();
  logger.reset();
  reducer.reset();  // before the next one: its hooks on the parameters must be gone
  auto made_of = reducer_options(options);
  made_of.first_buckets = first_buckets;
  try {
    reducer = torch_port::make_reducer(trained, names, sparse, collectives(), made_of);
  } catch (const c10::Error& error) {
    throw_ours("its Reducer", group, error);
  }
  logger = torch_port::make_logger(reducer);
  initial_bucket_bytes = logger->get_bucket_sizes();
  static_first_pass_done = false;
  hooks_removed = false;
  reducer_hook->forget_buckets();
  accumulators.clear();
  for (const at::Tensor& parameter : trained) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(parameter).get());
  }
  if (low_precision) low_precision->watch(trained);
  if (in_backward && !options.gradient_as_bucket_view) reducer->set_optimizer_in_backward();
  if (engine) register_hook();
}

void DdpCore::State::restore_full_precision() {
  if (low_precision) low_precision->restore();
}

void DdpCore::State::drop_low_precision() noexcept try {
  restore_full_precision();
} catch (const std::exception&) {
  // The error is about a parameter that was changed in between. All parameters have their
  // own data back. The caller has a worse error already, or needs the model no more.
}

bool DdpCore::State::hooks_in_place() const {
  for (size_t i = 0; i < trained.size(); ++i) {
    if (torch::autograd::impl::try_get_grad_accumulator(trained[i]).get() !=
        accumulators[i]) {
      return false;
    }
  }
  return true;
}

void DdpCore::State::prepare_forward() {
  if (!hooks_removed && !hooks_in_place()) make_reducer();
  if (syncs()) {
    logger->set_runtime_stats_and_log();
    reducer->prepare_for_forward();
  }
  if (joining) announce_pass();
  try {
    reducer->rebuild_buckets();
  } catch (const c10::Error& error) {
    auto missing = torch_port::parameters_without_gradient(error.what());
    if (missing.empty()) throw;
    throw_missing_gradients(quoted(names, missing));
  }
  check_same_layout();
}

// On a device backward() does not wait for its collectives. So the failure of another
// rank's hook, or a broken group, may show here first.
void DdpCore::State::meet_before_forward() try {
  prepare_forward();
  if (has_buffers_to_sync()) broadcast_buffers(joining ? agree_on_root(true) : 0);
  if (joining) announce_gradient_sync();
  check_replicas();
} catch (const c10::Error& error) {
  if (engine) engine->throw_if_any_rank_failed();
  throw_ours("forward", group, error);
}

void DdpCore::State::prepare_backward(const std::vector<at::Tensor>& results) try {
  reducer->prepare_for_backward(results);
} catch (const c10::Error& error) {
  auto missing = torch_port::parameters_without_gradient(error.what());
  if (missing.empty()) throw_ours("forward", group, error);
  throw_missing_gradients(quoted(names, missing));
}

// Gradient accumulators run on the stream that was current when the model was wrapped. If
// another one is being recorded, LibTorch breaks the recording before a hook runs.
void DdpCore::State::refuse_capture() const {
  const auto on_device = [](const at::Tensor& tensor) { return tensor.is_cuda(); };
  if (std::ranges::none_of(trained, on_device) || !torch_port::is_capturing()) return;
  throw Error(
      "forward: the pass is being recorded as a CUDA graph; which gradients are sent, and "
      "when, is decided on the host in each pass: record under NoGradGuard, or keep "
      "forward() and backward() out of the graph");
}

// ---- DdpCore ----------------------------------------------------------------------------

DdpCore::DdpCore(DdpModel model, ProcessGroup group, DdpOptions options)
    : state_(std::make_shared<State>()) {
  if (!group) {
    throw ConfigError(
        "DistributedDataParallel got an empty process group; give it what "
        "init_process_group() returned, and only on ranks that are in the group");
  }
  const std::string refusal = refusal_of(model, options);
  if (refusal.empty())
    model = without_ignored(std::move(model), options.parameters_to_ignore);
  verify_same_on_all_ranks(model, options, group, refusal);
  if (!refusal.empty()) throw ConfigError(refusal);

  state_->model = std::move(model);
  state_->enter(std::move(group));
  state_->options = std::move(options);
  for (const DdpParameter& parameter : state_->model.parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    state_->trained.push_back(parameter.tensor);
    state_->names.push_back(parameter.name);
    state_->sparse.push_back(parameter.sparse_gradient);
    state_->parameter_names->set(parameter.tensor, parameter.name);
  }
  if (state_->options.init_sync) state_->broadcast_model(0);
  if (state_->options.mixed_precision) {
    state_->low_precision =
        std::make_shared<LowPrecision>(*state_->options.mixed_precision);
    state_->hook = state_->around(nullptr);
    if (state_->hook) state_->make_engine();
  }
  state_->make_reducer();
}

DdpCore::~DdpCore() {
  state_->drop_low_precision();
  state_->close_engine();
  state_->watched.reset();
}

void DdpCore::before_forward() {
  State& s = *state_;
  if (!at::GradMode::is_enabled()) {  // inference: other ranks need not know
    // Low-precision copies that wait for a backward pass are used here too.
    s.restore_after_forward = s.low_precision && !s.low_precision->lowered();
    if (s.restore_after_forward) s.low_precision->lower(s.model);
    return;
  }
  // The Reducer holds a lock of its own while hooks run.
  if (s.engine && engine::runs_hook_here(*s.engine)) {
    throw Error(
        "forward: called by the hook of this very model, in its backward pass; a hook "
        "computes with its bucket, and may use the model under NoGradGuard only");
  }
  s.refuse_capture();
  if (s.low_precision) s.low_precision->abandon();
  if (s.watched && s.syncs()) s.watched->begin_step();
  s.check_same_hook();
  s.meet_before_forward();
  if (s.low_precision) s.low_precision->lower(s.model);
}

bool DdpCore::casts_arguments() const { return state_->low_precision != nullptr; }

void DdpCore::cast_arguments(const std::vector<at::Tensor*>& tensors) const {
  state_->low_precision->cast(tensors);
}

void DdpCore::forward_failed() noexcept {
  // Low-precision copies that wait for a backward pass keep waiting.
  const bool mine = std::exchange(state_->restore_after_forward, false);
  if (at::GradMode::is_enabled() || mine) state_->drop_low_precision();
}

bool DdpCore::wants_results() const {
  const State& s = *state_;
  if (!at::GradMode::is_enabled()) return false;
  return s.searches_graph() || s.static_first_pass();
}

void DdpCore::after_forward(const std::vector<at::Tensor*>& results) {
  State& s = *state_;
  if (!at::GradMode::is_enabled()) {
    if (std::exchange(s.restore_after_forward, false)) s.restore_full_precision();
    return;
  }
  s.buffer_sync = s.syncs();
  if (s.syncs()) {
    s.pass_complete = s.gradient_sync;
    if (s.hook) s.hook->begin_pass({s.pass_complete, s.may_leave_unused()});
    std::vector<at::Tensor> roots;
    if (s.searches_graph()) {
      for (const at::Tensor* result : results) roots.push_back(*result);
    }
    s.prepare_backward(roots);
  }
  if (s.searches_graph()) {
    join_results(results, nullptr);
  } else if (s.static_first_pass()) {
    std::weak_ptr<State> weak = state_;
    join_results(results, [weak] {
      auto state = weak.lock();
      if (!state || state->static_first_pass_done.exchange(true)) return;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [reducer = state->reducer] { reducer->delay_all_reduce(); });
    });
  }
}

bool DdpCore::gradient_sync() const { return state_->gradient_sync; }
void DdpCore::set_gradient_sync(bool on) { state_->gradient_sync = on; }

void DdpCore::update_process_group(ProcessGroup group) {
  if (!group) throw ConfigError("update_process_group got an empty process group");
  state_->restore_full_precision();
  verify_same_on_all_ranks(state_->model, state_->options, group, {});
  state_->reducer->reset_state();
  state_->enter(std::move(group));
  state_->reducer->update_process_group(state_->collectives());
  state_->reducer_hook->forget_buckets();
  if (!state_->hook || state_->hook_group) return;
  state_->make_engine();
  state_->make_reducer();
}

void DdpCore::sync_buffers() {
  state_->restore_full_precision();
  if (state_->model.buffers) state_->broadcast_buffers(0);
}

void DdpCore::remove_autograd_hooks() {
  state_->reducer->remove_autograd_hooks();
  state_->hooks_removed = true;
}

void DdpCore::leave_group() {
  State& s = *state_;
  s.drop_low_precision();
  s.close_engine();
  s.logger.reset();
  s.reducer.reset();
  s.watched.reset();
  zero_grad(s.trained);
}

void DdpCore::rejoin(ProcessGroup group) {
  State& s = *state_;
  if (s.hook_group)
    throw ConfigError("rejoin: the hook has a group of its own, which stays behind");
  verify_same_on_all_ranks(s.model, s.options, group, {});
  s.enter(std::move(group));
  s.joining.reset();
  s.buffer_sync = true;
  s.unchecked_passes = 0;
  s.hook_agreed = false;
  if (s.hook) s.make_engine();
  s.make_reducer();
}

void DdpCore::reset() {
  State& s = *state_;
  leave_group();
  s.enter(s.group.duplicate());
  s.joining.reset();
  s.buffer_sync = true;
  s.unchecked_passes = 0;
  if (s.hook) {
    s.hook->reset();
    if (s.hook_group) s.hook_group = s.hook_group.duplicate();
    s.make_engine();
  }
  if (s.options.init_sync) s.broadcast_model(0);
  s.make_reducer();
}

DdpLoggingData DdpCore::logging_data() const {
  const State& s = *state_;
  auto data = s.logger->get_ddp_logging_data();
  auto time = [&](const char* name) {
    return std::chrono::nanoseconds(data.ints_map[name]);
  };
  DdpLoggingData out;
  out.iterations = data.ints_map["iteration"];
  out.parameters = static_cast<int64_t>(s.trained.size());
  for (const at::Tensor& p : s.trained)
    out.parameter_bytes += static_cast<int64_t>(p.nbytes());
  out.unused_parameter_bytes = data.ints_map["unused_parameter_size"];
  out.initial_bucket_bytes = s.initial_bucket_bytes;
  out.has_rebuilt_buckets = data.ints_map["has_rebuilt_buckets"] != 0;
  out.bucket_bytes = s.logger->get_bucket_sizes();
  out.bucket_parameters = bucket_layout();
  out.forward_compute = time("avg_forward_compute_time");
  out.backward_compute = time("avg_backward_compute_time");
  out.backward_communication = time("avg_backward_comm_time");
  out.backward_overlap = time("avg_backward_compute_comm_overlap_time");
  return out;
}

const ProcessGroup& DdpCore::group() const { return state_->group; }
const DdpOptions& DdpCore::options() const { return state_->options; }
const std::vector<at::Tensor>& DdpCore::parameters() const { return state_->trained; }
const std::vector<std::string>& DdpCore::parameter_names() const { return state_->names; }
const std::vector<bool>& DdpCore::sparse_gradients() const { return state_->sparse; }
bool DdpCore::trains(const at::Tensor& tensor) const {
  return state_->parameter_names->knows(tensor);
}

// ---- ModelHandle -----------------------------------------------------------------------

DdpCore::ModelHandle DdpCore::handle() const { return ModelHandle(state_); }

bool DdpCore::ModelHandle::joining() const {
  const auto state = state_.lock();
  return state && state->joining;
}

std::vector<std::vector<at::Tensor>> DdpCore::ModelHandle::final_buckets() const {
  std::vector<std::vector<at::Tensor>> buckets;
  const auto state = state_.lock();
  if (!state || state->reducer->should_rebuild_buckets()) return buckets;
  for (const auto& indices : state->logger->get_per_bucket_variable_indices()) {
    auto& bucket = buckets.emplace_back();
    for (const size_t index : indices) bucket.push_back(state->trained.at(index));
  }
  return buckets;
}

}  // namespace brigade

// Which parameters share a bucket.

namespace brigade {

void DdpCore::rebuild_buckets() { state_->reducer->rebuild_buckets(); }

std::vector<std::vector<std::string>> DdpCore::bucket_layout() const {
  std::vector<std::vector<std::string>> buckets;
  if (!state_->logger) return buckets;
  for (const auto& indices : state_->logger->get_per_bucket_variable_indices()) {
    auto& bucket = buckets.emplace_back();
    for (const size_t index : indices) bucket.push_back(state_->names.at(index));
  }
  return buckets;
}

void DdpCore::begin_with_buckets(const std::vector<std::vector<std::string>>& names) {
  state_->make_reducer(names);
}

}  // namespace brigade
