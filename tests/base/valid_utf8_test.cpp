#include "base/valid_utf8.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace brigade::testing {
namespace {

using base::valid_utf8;

TEST(ValidUtf8, KeepsWhatIsValidAndQuotesTheRest) {
  EXPECT_EQ(valid_utf8(""), "");
  EXPECT_EQ(valid_utf8("plain, ü, €, 😀"), "plain, ü, €, 😀");
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a\\xffb");
  EXPECT_EQ(valid_utf8(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\\xe2\\x82");           // cut
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\\xc0\\xaf");           // longer than it must be
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half of a pair
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last
  EXPECT_EQ(valid_utf8("\x80ü"), "\\x80ü");
}

// JSON's writer throws for text that is not valid.
TEST(ValidUtf8, WhateverTheBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 8, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 3 ? 0x80 | random() : random());
    ASSERT_NO_THROW(nlohmann::json(valid_utf8(bytes)).dump());
    ASSERT_EQ(valid_utf8(valid_utf8(bytes)), valid_utf8(bytes));
  }
}

}  // namespace
}  // namespace brigade::testing
