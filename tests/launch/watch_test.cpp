// How a job is watched: pages that ranks write, what is said about them, and who asks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "brigade/ddp_core.h"
#include "brigade/error.h"
#include "brigade/hooks/registry.h"
#include "brigade/launch.h"
#include "brigade/report/live.h"
#include "group/live/rank_page.h"
#include "group/network.h"
#include "launch/watch/job_view.h"
#include "launch/watch/metrics_server.h"
#include "launch/watch/metrics_text.h"
#include "launch/watch/node_pages.h"
#include "launch/watch/status_folder.h"
#include "support/command.h"

namespace brigade::launching {
namespace {

using group::RankPage;
using group::RankStatus;

// A job of this very process, with pages that the test writes.
class Watched : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  Watched() : folder_({.host = "here", .pid = getpid(), .workers = kRanks}) {
    folder_.begin_attempt(/*attempt=*/1, /*first_rank=*/4, /*world=*/8, "a \"job\"");
    for (int i = 0; i < kRanks; ++i)
      pages_.push_back(std::make_unique<RankPage>(folder_.page_for(4 + i, false)));
  }

  // A step of all ranks, in which they compute so long.
  void step(std::vector<float> compute_ms) {
    for (size_t i = 0; i < compute_ms.size(); ++i) {
      pages_[i]->update([&](RankStatus& status) {
        if (status.steps++ > 0) {
          status.recent[status.steps_over++ % RankStatus::kSteps] = {
              .step_ms = 40, .compute_ms = compute_ms[i], .wait_ms = 40 - compute_ms[i]};
        }
        status.step_began_ns = group::monotonic_ns();
      });
    }
  }
  JobView view() const {
    const auto read = read_job(folder_.path());
    if (!read) throw Error("there is no job");
    return *read;
  }
  std::vector<std::string> complaints() const { return complaints_about(view()); }

  StatusFolder folder_;
  std::vector<std::unique_ptr<RankPage>> pages_;
};

TEST_F(Watched, ARankThatBecomesSlowIsNamedWithinTwentySteps) {
  for (int i = 0; i < 30; ++i) step({10, 11, 10});
  EXPECT_TRUE(complaints().empty()) << complaints()[0];
  int steps = 0;
  while (complaints().empty() && steps < 100) step({10, 11, 20}), ++steps;
  EXPECT_LE(steps, 20);
  EXPECT_EQ(complaints(), std::vector<std::string>{
                              "rank 6 straggles: it computes for 20.0 ms a step, the "
                              "others for 11.0 ms at most"});
  const JobView seen = view();
  EXPECT_TRUE(seen.ranks[2].straggles);
  EXPECT_FALSE(seen.ranks[1].straggles);
  EXPECT_EQ(seen.job.restarts, 1);
  EXPECT_EQ(seen.ranks[0].rank, 4);
  EXPECT_DOUBLE_EQ(seen.ranks[0].wait_ms, 30);
  EXPECT_EQ(seen.ranks[0].status.steps, 30 + steps);
}

// Twice as long is nothing where both are little of a step.
TEST_F(Watched, WhatNobodyNoticesIsNoStraggler) {
  for (int i = 0; i < 30; ++i) step({1, 1, 2});
  EXPECT_TRUE(complaints().empty()) << complaints()[0];
}

TEST_F(Watched, AStandstillNamesTheRankThatIsBehind) {
  for (int i = 0; i < 3; ++i) step({10, 10, 10});
  step({10, 10});
  for (auto& page : pages_)
    page->update([](RankStatus& s) { s.step_began_ns -= 12'500'000'000; });
  EXPECT_EQ(complaints(),
            std::vector<std::string>{"no step for 12 s: rank 6 at step 3, others at 4"});
}

TEST_F(Watched, WhatIsNoNumberIsSaid) {
  step({10, 10, 10});
  pages_[1]->update([](RankStatus& s) { s.losses = s.bad_losses = 2, s.loss = NAN; });
  pages_[2]->update([](RankStatus& s) { s.bad_gradients = 3; });
  EXPECT_EQ(
      complaints(),
      (std::vector<std::string>{
          "rank 5 had 2 losses that are no finite numbers",
          "rank 6 had gradients that are no finite numbers, in 3 samples of a bucket"}));
  const std::string text = metrics_text(view());
  for (const char* line :
       {"brigade_job_info{run_id=\"a \\\"job\\\"\",host=\"here\"} 1\n",
        "# TYPE brigade_restarts_total counter\nbrigade_restarts_total 1\n",
        "brigade_loss{rank=\"5\",hook=\"\"} NaN\n",
        "brigade_not_finite_total{rank=\"6\",what=\"gradient\"} 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in\n" << text;
  }
}

TEST_F(Watched, APageHasOneWriterAndAReplacementAFreshOne) {
  EXPECT_THROW(RankPage(rank_page_of(folder_.path(), 4)), Error);
  step({10, 10, 10});
  const RankPage second(folder_.page_for(4, /*replaces=*/true));
  EXPECT_EQ(view().ranks[0].status.steps, 0);
  EXPECT_EQ(view().job.replaced, 1);
  std::ofstream(folder_.path() + "/rank_5", std::ios::trunc) << "garbage";
  EXPECT_EQ(view().ranks[1].state, RankView::State::starting);
}

TEST_F(Watched, GarbageInTheFolderIsNoJobAndHoldsNobodyUp) {
  for (int i = 0; i < 20; ++i) step({10, NAN, 10});
  pages_[2]->update([](RankStatus& status) { std::strcpy(status.hook, "a\n\033[2Jb"); });
  EXPECT_EQ(view().ranks[1].compute_ms, 0);
  EXPECT_STREQ(view().ranks[2].status.hook, "a  [2Jb");
  const std::string page = rank_page_of(folder_.path(), 4);
  ASSERT_EQ(unlink(page.c_str()), 0);
  ASSERT_EQ(mkfifo(page.c_str(), 0600), 0);
  EXPECT_EQ(view().ranks[0].state, RankView::State::starting);
  EXPECT_THROW(RankPage{page}, Error);
  const std::string file = folder_.path() + "/job.json";
  JobInfo job = view().job;
  job.command = "python -c 'one\n\033[2J'";
  EXPECT_EQ(job_from_json(to_json(job))->command, "python -c 'one  [2J'");
  job.workers = 2'000'000'000;
  EXPECT_FALSE(job_from_json(to_json(job)));
  job = {.pid = -1, .workers = 1};
  EXPECT_FALSE(job_from_json(to_json(job)));
  for (const char* text : {"", "[", "[]", "{\"pid\": \"x\"}", "\xff"})
    EXPECT_FALSE(job_from_json(text)) << text;
  ASSERT_EQ(unlink(file.c_str()), 0);
  EXPECT_FALSE(read_job(folder_.path()));
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(read_job(folder_.path()));
}

TEST(Watching, AJobThatHasEndedIsNoneAndItsFolderGoes) {
  std::string path;
  {
    StatusFolder folder({.pid = 1 << 30, .workers = 1});
    path = folder.path();
    folder.begin_attempt(0, 0, 1, "gone");
    EXPECT_FALSE(read_job(path));
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

// A real training: what a rank sees of the job from inside.
TEST(Watching, ARealTrainingShowsStepsBucketsBytesLossesAndNaNs) {
  const testing::TemporaryFolder folder;
  const std::string note = folder.path() + "/seen";
  launch(2, [&](int rank) {
    std::vector<DdpParameter> parameters;
    for (const char* name : {"a", "b"})
      parameters.push_back({name, at::ones({400, 400}).requires_grad_(true)});
    DdpCore ddp({.parameters = parameters}, init_process_group({.backend = "gloo"}),
                {.bucket_cap_mb = 0.1});
    ddp.set_hook(make_hook("fp16"));
    for (int step = 0; step < 4; ++step) {
      ddp.before_forward();
      at::Tensor loss = parameters[0].tensor.sum() + parameters[1].tensor.sum();
      if (rank == 1 && step == 0) loss = loss * NAN;
      ddp.after_forward({&loss});
      zero_grad(ddp.parameters());
      loss.backward();
      if (step == 1) report::show_loss(NAN);
      report::show_loss(10 + step);
    }
    if (rank == 1) return;
    const std::string page = std::getenv(group::kStatusFile);
    const auto view = read_job(page.substr(0, page.rfind('/')));
    std::ofstream seen(note);
    const auto& status = view->ranks.at(0).status;
    seen << status.hook << ' ' << status.steps << ' ' << status.steps_over << ' '
         << status.buckets << ' ' << status.bucket[0].bytes_sent << ' '
         << status.bytes_to_other_hosts << ' ' << status.loss << ' ' << status.bad_losses
         << ' ' << status.bad_gradients << ' ' << view->ranks.at(1).status.bad_gradients
         << ' ' << (view->ranks[0].step_ms > 0) << (status.bytes_sent >= 3 * 2 * 320'000);
  });
  std::ifstream file(note);
  std::string seen;
  std::getline(file, seen);
  EXPECT_EQ(seen, "fp16 4 3 2 320000 0 13 1 0 1 11");
}

// The rank is slow from a certain step on. Slow is 40 ms where the others take less than
// one, so that a busy machine does not change who it is.
TEST(Watching, ARealSlowRankIsNamedWithinTwentySteps) {
  constexpr int kQuickSteps = 20, kSlowSteps = 40;
  const testing::TemporaryFolder folder;
  const std::string note = folder.path() + "/seen";
  const std::string launcher = std::to_string(getpid());
  launch(3, [&](int rank) {
    at::Tensor weight = at::ones({64, 64}).requires_grad_(true);
    DdpCore ddp({.parameters = {{"weight", weight}}},
                init_process_group({.backend = "gloo"}));
    ddp.set_hook(make_hook("allreduce"));
    const std::string page = std::getenv(group::kStatusFile);
    bool named = false;
    for (int step = 0; step < kQuickSteps + kSlowSteps; ++step) {
      const int slow_steps = step - kQuickSteps;
      if (rank == 0 && slow_steps >= 0 && !named) {
        const auto view = read_job(page.substr(0, page.rfind('/')));
        named = view->ranks.at(1).straggles;
        if (named)
          std::ofstream(note) << slow_steps << '\n'
                              << testing::run_command({testing::built_program("brigade"),
                                                       "top", launcher, "--once"})
                                     .out;
      }
      if (rank == 1 && slow_steps >= 0) usleep(40'000);
      ddp.before_forward();
      at::Tensor loss = weight.sum();
      ddp.after_forward({&loss});
      zero_grad(ddp.parameters());
      loss.backward();
    }
  });
  std::ifstream file(note);
  int steps = 1000;
  file >> steps;
  EXPECT_LE(steps, 20);
  const std::string top{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(top.find("! rank 1 straggles: it computes for "), std::string::npos) << top;
}

// Another host's bytes: what fits the job is shown beside its own ranks, the rest is not.
TEST(Watching, NodeZeroShowsWhatOtherHostsTell) {
  StatusFolder here({.host = "one", .pid = getpid(), .nodes = 2, .workers = 1});
  StatusFolder there({.host = "t\nwo", .pid = getpid(), .nodes = 2, .workers = 1});
  here.begin_attempt(/*attempt=*/1, /*first_rank=*/0, /*world=*/2, "job");
  there.begin_attempt(1, 1, 2, "job");
  RankPage(there.page_for(1, false)).update([](RankStatus& status) {
    status.steps = 7, status.step_began_ns = group::monotonic_ns() - 3'000'000'000;
  });
  const std::string bytes = pack_ranks(there.path());
  keep_node(here.path(), 1, bytes);
  const auto view = read_job(here.path());
  ASSERT_EQ(view->ranks.size(), 2u);
  EXPECT_EQ(view->ranks[0].host, "");
  EXPECT_EQ(view->ranks[1].host, "t wo");
  EXPECT_EQ(view->ranks[1].pid, getpid());
  EXPECT_EQ(view->ranks[1].status.steps, 7);
  EXPECT_GE(view->ranks[1].seconds_since_step, 3);
  EXPECT_EQ(metrics_text(*view).find("rank=\"1\""), std::string::npos);
  for (const std::string& other :
       {std::string("garbage"), bytes.substr(1), bytes.substr(0, bytes.size() - 1),
        pack_ranks(here.path())}) {
    keep_node(here.path(), 1, other);
    EXPECT_EQ(read_job(here.path())->ranks.size(), 1u);
  }
  keep_node(here.path(), 1, bytes);
  here.begin_attempt(2, 0, 2, "job");  // the other host has not begun it
  EXPECT_EQ(read_job(here.path())->ranks.size(), 1u);
}

// ---- --metrics-port ---------------------------------------------------------------------

// A connection that gives up after ten seconds.
class Client {
 public:
  explicit Client(const MetricsServer& server) {
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const auto address = group::resolve("127.0.0.1", server.port()).at(0);
    if (connect(fd_, address.get(), address.length) != 0) throw Error("cannot connect");
  }
  ~Client() { close(fd_); }
  void say(const std::string& text) const {
    ASSERT_GT(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), 0);
  }
  // Bytes, or the end.
  bool has_news() const {
    pollfd ready{fd_, POLLIN, 0};
    return poll(&ready, 1, 0) > 0;
  }
  // All until the other side closes.
  std::string hear() const {
    std::string all;
    char block[4096];
    while (true) {
      const ssize_t count = recv(fd_, block, sizeof block, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return all;
      all.append(block, static_cast<size_t>(count));
    }
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

TEST(Metrics, GarbageIsAnsweredAndTheSilentDoNotShutOthersOut) {
  MetricsServer server(0);
  server.start([] { return "brigade_workers 2\n"; });
  const auto asked = [&](const std::string& request) {
    const Client client(server);
    client.say(request);
    return client.hear();
  };
  EXPECT_TRUE(
      asked("GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nbrigade_workers 2\n"));
  EXPECT_TRUE(asked("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(asked("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(asked("\x16\x03\x01\n\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(asked(std::string(4096, 'x')).starts_with("HTTP/1.1 431"));
  // Far more than are served at once, and none of them says a word. Those who came first
  // have to go, and nobody waits until the others' time is up.
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Client>(server));
  const std::string reply = asked("GET /metrics HTTP/1.0\r\n\r\n");
  EXPECT_NE(reply.find("brigade_workers 2"), std::string::npos) << reply;
  const bool last_is_there = !silent.back()->has_news();
  if (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1500)) {
    EXPECT_TRUE(last_is_there);
  }
  EXPECT_EQ(silent[0]->hear(), "");
}

TEST(Metrics, ANumberThatCannotBeHadIsNotTheJobsEnd) {
  MetricsServer server(0);
  server.start([]() -> std::string { throw Error("no memory"); });
  const Client client(server);
  client.say("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(client.hear().starts_with("HTTP/1.1 500"));
}

TEST(Metrics, APortThatIsTakenIsRefused) {
  const MetricsServer first(0);
  EXPECT_THROW(MetricsServer(first.port()), ConfigError);
}

}  // namespace
}  // namespace brigade::launching
