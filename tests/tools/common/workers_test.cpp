#include "common/workers.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "brigade/launch.h"
#include "common/json.h"
#include "common/shaped_link.h"
#include "support/network_namespaces.h"

namespace brigade::tool {
namespace {

TEST(Workers, AnswerThroughMemory) {
  const Answers answers;
  run_workers({.workers = 3}, [&](const Worker& worker) {
    at::Tensor sum = at::ones({1});
    worker.group.all_reduce(sum);
    answers.add({{"rank", worker.group.rank()}, {"sum", sum.item<int>()}});
  });
  int ranks = 0;
  for (const nlohmann::json& answer : answers.all()) {
    ranks += 1 << answer["rank"].get<int>();
    EXPECT_EQ(answer["sum"], 3);
  }
  EXPECT_EQ(ranks, 0b111);
}

TEST(Workers, WhatOneThrowsIsThrownAgainWithItsText) {
  const auto only_rank_1 = [](const auto& error) {
    return [error](const Worker& worker) {
      if (worker.group.rank() == 1) throw error;
    };
  };
  try {
    run_workers({}, only_rank_1(ConfigError("--flag is wrong")));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "--flag is wrong");
  }
  try {
    run_workers({}, only_rank_1(std::runtime_error("odd")));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const LaunchError& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1: std::runtime_error: odd");
  }
}

TEST(Workers, AProgramIsStartedLikeAFunction) {
  const auto shell = [](const std::string& text, WorkerOptions options) {
    run_workers(options, {"sh", "-c", text});
  };
  shell("test $WORLD_SIZE = 3 && test $RANK -lt 3 && test $NAME = value",
        {.workers = 3, .environment = {{"NAME", "value"}}});
  EXPECT_THROW(shell("exit 3", {}), LaunchError);
  try {
    run_workers({}, {"/no/such/program"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot run /no/such/program"),
              std::string::npos)
        << error.what();
  }
}

TEST(Workers, ThoseThatMeasureHaveOneThreadAndKeepTheirMemory) {
  const char* before = std::getenv("OMP_NUM_THREADS");
  const std::string threads = before ? before : "";
  unsetenv("OMP_NUM_THREADS");
  const std::string kept = "test \"$MALLOC_MMAP_MAX_$MALLOC_ARENA_MAX\" = ";
  run_workers(measuring_workers(2), {"sh", "-c", kept + "01 && test $OMP_NUM_THREADS = 1"});
  run_workers({.workers = 2}, {"sh", "-c", kept + "''"});
  setenv("OMP_NUM_THREADS", "3", 1);
  run_workers(measuring_workers(2), {"sh", "-c", "test $OMP_NUM_THREADS = 3"});
  before ? setenv("OMP_NUM_THREADS", threads.c_str(), 1) : unsetenv("OMP_NUM_THREADS");
}

TEST(Workers, OnALinkOfSharedHostsEachKnowsItsPlace) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const ShapedLink link(2, 1e9, 2);
  run_workers(
      measuring_workers(4, "cpu", &link),
      {"sh", "-c",
       "test $LOCAL_WORLD_SIZE = 2 && test $((GROUP_RANK * 2 + LOCAL_RANK)) = $RANK"});
  run_workers({.workers = 4, .link = &link}, [](const Worker& worker) {
    const HostLayout& layout = worker.group.layout();
    if (layout.text() != "2 hosts x 2 ranks" || layout.host != worker.group.rank() / 2)
      throw Error("they sit as " + layout.text());
  });
}

TEST(Workers, OnALinkEachIsAHostOfItsOwn) {
  const std::string why = testing::why_no_network_namespaces();
  if (!why.empty()) GTEST_SKIP() << why;
  const ShapedLink link(2, 1e9);
  run_workers(measuring_workers(2, "cpu", &link),
              {"sh", "-c",
               "test $LOCAL_RANK = 0 && test $LOCAL_WORLD_SIZE = 1 && test $MASTER_ADDR = "
               "10.78.0.1 && test -d /proc/sys/net/ipv4/conf/" +
                   std::string(ShapedLink::kInterface)});
  run_workers({.link = &link}, [](const Worker& worker) {
    at::Tensor sum = at::ones({1});
    worker.group.all_reduce(sum);
    if (sum.item<int>() != 2) throw Error("a wrong sum");
  });
}

}  // namespace
}  // namespace brigade::tool
