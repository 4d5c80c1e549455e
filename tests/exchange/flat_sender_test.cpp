#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "exchange/flat_buffer.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::run_ranks;

// Has two dtypes, one parameter that is sent in place, and one in another layout.
std::vector<at::Tensor> parameters_of(float value) {
  return {at::full({3, 4}, value), at::full({5}, value, at::kDouble),
          at::full({kInPlaceBytes / 4 + 1}, value), at::full({6, 2}, value).t(),
          at::full({1}, value)};
}
const std::vector<int> kOwners{0, 1, 1, 2, 0};

TEST(FlatSender, EveryoneGetsTheOwnersValuesWithViewsAndWithout) {
  for (const bool views : {false, true}) {
    run_ranks(3, [views](ProcessGroup group) {
      const auto parameters = parameters_of(static_cast<float>(group.rank()));
      FlatSender sender(group);
      EXPECT_FALSE(sender.laid_out());
      sender.lay_out(parameters, kOwners, views);
      EXPECT_TRUE(sender.laid_out());
      for (int step = 0; step < 2; ++step) {
        sender.send();
        for (size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_TRUE(at::all(parameters[i] == kOwners[i] + 10 * step).item<bool>()) << i;
          if (kOwners[i] == group.rank()) at::Tensor(parameters[i]).add_(10);
        }
      }
      sender.clear();
      EXPECT_FALSE(sender.laid_out());
    });
  }
}

TEST(FlatSender, ViewsShareOneMemoryUntilAParameterGetsAnother) {
  run_ranks(1, [](ProcessGroup group) {
    const auto parameters = parameters_of(1);
    FlatSender sender(group);
    sender.lay_out(parameters, std::vector<int>(parameters.size()), /*views=*/true);
    EXPECT_TRUE(parameters[0].is_alias_of(parameters[4]));
    EXPECT_FALSE(parameters[0].is_alias_of(parameters[1]));  // another dtype
    EXPECT_EQ(parameters[3].strides(), at::IntArrayRef({1, 2}));
    for (const at::Tensor& each : parameters) EXPECT_TRUE(at::all(each == 1).item<bool>());
    at::Tensor(parameters[0]).set_data(at::ones({3, 4}));
    EXPECT_FALSE(sender.laid_out());
  });
}

}  // namespace
}  // namespace brigade
