#include "base/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade::testing {
namespace {

TEST(Module, ThatIsMissingAndOneThatLacksALibraryAreToldApart) {
  const base::Module missing = base::load_module("never_built");
  EXPECT_EQ(missing.handle, nullptr);
  EXPECT_EQ(missing.reason,
            "its module libnever_built.so is not there (built without a CUDA toolkit?)");
  // This library, built beside the program, needs a CUDA runtime that does not exist.
  const base::Module lacking = base::load_module("needs_cudart");
  EXPECT_EQ(lacking.handle, nullptr);
  EXPECT_THAT(lacking.reason,
              ::testing::StartsWith("its module cannot be loaded: libcudart.so.99: cannot "
                                    "open shared object file"));
}

}  // namespace
}  // namespace brigade::testing
