#include "base/hash.h"

#include <gtest/gtest.h>

namespace brigade::testing {
namespace {

// xxHash's specification has these values; checkpoints hold such hashes, on every machine.
TEST(Hash64, IsXXH64) {
  EXPECT_EQ(base::hash64(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(base::hash64("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(base::hash64("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(base::hash64("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
}

}  // namespace
}  // namespace brigade::testing
