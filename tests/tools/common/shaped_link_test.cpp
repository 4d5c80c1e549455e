#include "common/shaped_link.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>

#include "brigade/error.h"
#include "brigade/launch.h"
#include "common/options/number_text.h"
#include "common/options/quantities.h"
#include "support/network_namespaces.h"

namespace brigade::tool {
namespace {

TEST(Rate, IsReadInManySpellings) {
  for (const auto& [text, rate] :
       std::vector<std::pair<const char*, double>>{{"100mbit", 100e6},
                                                   {"1gbit", 1e9},
                                                   {"2.5 Gbit/s", 2.5e9},
                                                   {"800k", 800e3},
                                                   {"10Gbps", 10e9},
                                                   {"9600", 9600}}) {
    EXPECT_DOUBLE_EQ(parse_rate(text, "--link"), rate) << text;
  }
  for (const char* bad : {"", "fast", "100xbit", "-1mbit", "0", "1kbit", "9tbit", "mbit",
                          "1mmbit", "nan", "inf"}) {
    EXPECT_THROW(parse_rate(bad, "--link"), ConfigError) << bad;
  }
  EXPECT_EQ(rate_text(100e6), "100 Mbit/s");
  EXPECT_EQ(rate_text(2.5e9), "2.5 Gbit/s");
}

TEST(ShapedLink, IsAsSlowAsItWasAskedToBe) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(ShapedLink::missing(), "");
  const ShapedLink link(3, 20e6);
  launch(3,
         [&](int rank) {
           const ProcessGroup group = link.join(rank, std::chrono::seconds(20));
           at::Tensor values = at::ones({250'000});  // 1 MB
           const auto begin = std::chrono::steady_clock::now();
           group.all_reduce(values);
           const std::chrono::duration<double> time =
               std::chrono::steady_clock::now() - begin;
           if (!values.eq(3).all().item<bool>()) throw Error("a wrong sum");
           // Each sends 4/3 MB, half a second; a little is let through at once.
           if (time.count() < 0.4) throw Error("too quick for 20 Mbit/s");
         },
         {.wall = std::chrono::seconds(30), .prefix = false});
}

}  // namespace
}  // namespace brigade::tool
