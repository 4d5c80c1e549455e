#include "torch_port/reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <limits>
#include <sstream>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace brigade::torch_port {
namespace {

// The limits of the first buckets. If buckets are rebuilt in order of arrival after the
// first iteration, one bucket has all parameters until then: with several, in order of
// definition, one rank alone may run the model's own collectives between two buckets.
std::vector<size_t> first_limits(const ReducerOptions& options) {
  if (!options.bucket_caps.empty()) {
    return {options.bucket_caps.begin(), options.bucket_caps.end()};
  }
  if (options.static_graph || !options.find_unused_parameters) {
    return {static_cast<size_t>(std::numeric_limits<int64_t>::max())};
  }
  return {static_cast<size_t>(options.first_bucket_cap),
          static_cast<size_t>(options.bucket_cap)};
}

template <class T>
void delete_quietly(T* object) {
  try {
    delete object;
  } catch (...) {
    // It reports hooks that are gone already, which no caller can mend.
  }
}

class AccumulatorGuard : public torch::autograd::FunctionPreHook {
 public:
  explicit AccumulatorGuard(std::function<void()> check) : check_(std::move(check)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    check_();
    return gradients;
  }

 private:
  const std::function<void()> check_;
};

}  // namespace

std::shared_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            const std::vector<std::string>& names,
                                            const std::vector<bool>& sparse,
                                            c10::intrusive_ptr<c10d::ProcessGroup> group,
                                            const ReducerOptions& options) {
  auto buckets = options.first_buckets;
  if (buckets.empty()) {
    buckets = std::get<0>(
        c10d::compute_bucket_assignment_by_size(parameters, first_limits(options), sparse));
    // Gradients arrive in about the reverse order of definition.
    std::reverse(buckets.begin(), buckets.end());
  }
  std::unordered_map<size_t, std::string> name_of;
  for (size_t i = 0; i < names.size(); ++i) name_of[i] = names[i];
  auto reducer = std::shared_ptr<c10d::Reducer>(
      new c10d::Reducer(parameters, std::move(buckets), std::move(group), sparse,
                        options.bucket_cap, options.find_unused_parameters,
                        options.gradient_as_bucket_view, std::move(name_of),
                        options.first_bucket_cap, options.skip_all_reduce_unused_params,
                        /*use_python_reducer=*/false, options.bucket_caps),
      delete_quietly<c10d::Reducer>);
  if (options.static_graph) reducer->set_static_graph();
  return reducer;
}

std::shared_ptr<c10d::Logger> make_logger(const std::shared_ptr<c10d::Reducer>& reducer) {
  auto logger = std::shared_ptr<c10d::Logger>(new c10d::Logger(reducer),
                                              delete_quietly<c10d::Logger>);
  reducer->set_logger(logger);
  return logger;
}

const c10::intrusive_ptr<c10d::ProcessGroup>& group_of(c10d::Reducer& reducer) {
  // Only a derived class can read it.
  struct Inside : c10d::Reducer {
    static auto group() { return &Inside::process_group_; }
  };
  return reducer.*Inside::group();
}

int divisor_of(c10d::Reducer& reducer) {
  struct Inside : c10d::Reducer {
    static auto divisor() { return &Inside::div_factor_; }
  };
  const int divisor = reducer.*Inside::divisor();
  return divisor > 0 ? divisor : group_of(reducer)->getSize();
}

std::vector<std::vector<at::Tensor>> buckets_of(c10d::Reducer& reducer) {
  // The public function locks the mutex that the Reducer holds in a comm hook.
  struct Inside : c10d::Reducer {
    static auto buckets(c10d::Reducer& reducer) {
      std::vector<std::vector<at::Tensor>> found;
      for (const auto& bucket : reducer.*(&Inside::buckets_))
        found.push_back(bucket.variables);
      return found;
    }
  };
  return Inside::buckets(reducer);
}

// The Reducer ends the pass in a callback that it queues after the first of these.
void when_reducer_is_done(std::function<void()> then) {
  auto& autograd = torch::autograd::Engine::get_default_engine();
  autograd.queue_callback(
      [&autograd, then = std::move(then)] { autograd.queue_callback(then); });
}

void guard_accumulator(torch::autograd::Node& accumulator, std::function<void()> check) {
  accumulator.add_pre_hook(std::make_unique<AccumulatorGuard>(std::move(check)));
}

std::vector<size_t> parameters_without_gradient(const std::string& what) {
  const std::string mark = "Parameter indices which did not receive grad for rank ";
  auto at = what.find(mark);
  if (at == std::string::npos || (at = what.find(':', at)) == std::string::npos) return {};
  std::istringstream text(what.substr(at + 1));
  std::vector<size_t> indices;
  for (size_t index; text >> index;) indices.push_back(index);
  return indices;
}

}  // namespace brigade::torch_port
