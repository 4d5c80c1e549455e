// Optimizers that can step in the backward pass, and errors for those that cannot.
#include <gtest/gtest.h>

#include <fstream>

#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "brigade/optimizer_in_backward.h"
#include "optim/fork.h"
#include "optim/numbers.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

using namespace brigade::optim;

static_assert(FunctionalOptimizer<Adam>);
static_assert(FunctionalOptimizer<TorchOptimizer>);
static_assert(!FunctionalOptimizer<torch::optim::SGD>);

// The compiler's output for a program with `line` in it, without warnings.
CommandResult compile(const std::string& line) {
  TemporaryFolder folder;
  const std::string file = folder.path() + "/program.cpp";
  std::ofstream(file) << R"(
#include <brigade/optimizer_in_backward.h>
struct Capable {
  void step_param(const at::Tensor& parameter, const at::Tensor& gradient);
};
struct Incapable {
  void step();
};
void program(brigade::DdpCore& core, std::shared_ptr<brigade::Hook> hook) {
  )" << line << "\n}\n";
  const std::string torch = BRIGADE_LIBTORCH;
  CommandOptions options;
  options.wall = std::chrono::seconds(120);
  return run_command(
      {BRIGADE_CXX, "-std=c++20", "-fsyntax-only", "-w", "-fdiagnostics-color=never",
       std::string("-I") + BRIGADE_SOURCE_DIR + "/include", "-isystem", torch + "/include",
       "-isystem", torch + "/include/torch/csrc/api/include", file},
      options);
}

int errors_in(const std::string& text) {
  int count = 0;
  for (size_t at = text.find("error:"); at != std::string::npos;
       at = text.find("error:", at + 1)) {
    ++count;
  }
  return count;
}

TEST(TheConcept, AnyTypeWithStepParamFits) {
  const auto result = compile(
      "auto capable = std::make_shared<Capable>();"
      "brigade::optim::hook_then_optimizer(hook, capable);"
      "brigade::optim::apply_optimizer_in_backward(core, capable);");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(TheConcept, OneWithoutIsOneErrorThatSaysWhatIsMissingAndWhatToDo) {
  const auto result = compile(
      "brigade::optim::hook_then_optimizer(hook, std::make_shared<Incapable>());"
      "brigade::optim::apply_optimizer_in_backward(core, std::make_shared<Incapable>());");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(errors_in(result.err), 1) << result.err;
  for (const char* part :
       {"this optimizer can't step in the backward pass",
        "no step_param(const at::Tensor& parameter, const at::Tensor& gradient)",
        "brigade::optim::functional(optimizer)"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }
}

// ---- torch::optim -----------------------------------------------------------------------

TEST(TorchOptimizers, StepInTheBackwardPassWithTheirGroupsOptions) {
  run_ranks(2, [](ProcessGroup group) {
    const auto adam_of = [](Fork& net) {
      using torch::optim::AdamOptions, torch::optim::OptimizerParamGroup;
      std::vector<OptimizerParamGroup> groups;
      groups.emplace_back(net->first->parameters(),
                          std::make_unique<AdamOptions>(AdamOptions(0.1)));
      groups.emplace_back(std::vector{net->second->weight, net->second->bias,
                                      net->last->weight, net->last->bias, net->mixed});
      return std::make_shared<torch::optim::Adam>(groups, AdamOptions(0.01).amsgrad(true));
    };
    Fork after_net = make_fork(), net = make_fork();
    Ddp after(after_net, group, {.bucket_cap_mb = kSmallBucket});
    Ddp ddp(net, group, {.bucket_cap_mb = kSmallBucket});
    auto reference = adam_of(after_net), adam = adam_of(net);
    after->set_hook(make_hook("allreduce"));
    apply_optimizer_in_backward(ddp, functional(adam));
    for (int step = 0; step < 4; ++step) {
      for (auto* each : {&after, &ddp}) {
        (*each)->zero_grad();
        backward(*each, step, true);
      }
      reference->step();
    }
    expect_same_bits(after_net->parameters(), net->parameters(), "adam");
    EXPECT_EQ(adam->param_groups()[0].params().size(), 2U);
    EXPECT_EQ(adam->param_groups()[1].params().size(), 5U);
  });
}

TEST(TorchOptimizers, OnesThatCanNotAreRefused) {
  run_ranks(1, [](ProcessGroup) {
    auto parameter = start().requires_grad_(), stranger = start();
    expect_contains(thrown_text<ConfigError>([&] {
                      functional(std::make_shared<torch::optim::LBFGS>(
                          std::vector{parameter}, torch::optim::LBFGSOptions(1)));
                    }),
                    "LBFGS can't step in the backward pass");
    auto sgd = functional(std::make_shared<torch::optim::SGD>(
        std::vector{parameter}, torch::optim::SGDOptions(0.1)));
    expect_contains(
        thrown_text<ConfigError>([&] { sgd->step_param(stranger, gradient(0)); }),
        "in no group");
  });
}

}  // namespace
}  // namespace brigade::testing
