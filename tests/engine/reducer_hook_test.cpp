#include "engine/reducer_hook.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "support/ranks.h"

namespace brigade {
namespace {

TEST(ReducerHook, DropsGradientsAtTheEndOfEveryPassAlsoAfterOneThatFailed) {
  testing::run_ranks(1, [](ProcessGroup) {
    at::Tensor parameter = at::ones({3}).requires_grad_(true);
    const auto hook = std::make_shared<engine::ReducerHook>();
    hook->set_dropped({parameter});
    hook->drop_at_end_of_backward();  // outside of a pass: nothing
    bool fails = false;
    parameter.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      hook->drop_at_end_of_backward();
      hook->drop_at_end_of_backward();  // as for the next bucket
      if (fails) throw std::runtime_error("the pass fails");
      return gradient;
    });
    const auto pass = [&] { (2 * parameter).sum().backward(); };
    pass();
    EXPECT_FALSE(parameter.grad().defined());
    fails = true;
    EXPECT_THROW(pass(), std::exception);
    fails = false;
    pass();
    EXPECT_FALSE(parameter.grad().defined()) << "the pass after a failed one keeps it";
    hook->set_dropped({});
    pass();
    EXPECT_TRUE(parameter.grad().defined());
  });
}

}  // namespace
}  // namespace brigade
