#include "base/signals.h"

#include <gtest/gtest.h>

#include <ctime>

namespace brigade::testing {
namespace {

volatile sig_atomic_t seen = 0;

TEST(HeldBack, SignalsComeWhenItEnds) {
  struct sigaction before {
  }, counting{};
  counting.sa_handler = [](int) { seen = seen + 1; };
  ASSERT_EQ(sigaction(SIGTERM, &counting, &before), 0);
  {
    const base::HeldBack held(base::ending_signals());
    EXPECT_EQ(sigismember(&held.mask_before(), SIGTERM), 0);
    raise(SIGTERM);
    EXPECT_EQ(seen, 0);
  }
  EXPECT_EQ(seen, 1);
  raise(SIGTERM);
  EXPECT_EQ(seen, 2) << "the mask is not as it was";
  sigaction(SIGTERM, &before, nullptr);
}

TEST(HeldBack, WhatWasHeldBackBeforeStaysSo) {
  const base::HeldBack outer(base::ending_signals());
  { const base::HeldBack inner(base::ending_signals()); }
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, nullptr, &now);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
    EXPECT_EQ(sigismember(&now, number), 1) << number;
}

}  // namespace
}  // namespace brigade::testing
