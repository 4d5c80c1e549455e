// The phrases of base/failure.cpp, thrown by LibTorch itself. NCCL's are in
// tests/cuda/failures_test.cpp.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/exception_text.h"
#include "base/failure.h"
#include "launch/child.h"
#include "support/command.h"
#include "support/ranks.h"
#include "torch_port/gloo_backend.h"
#include "torch_port/typed_wait.h"

namespace brigade {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::run_ranks;

// The text of what `body` throws.
template <class Body>
std::string thrown_by(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return base::text_of(error);
  }
  return "nothing was thrown";
}

void expect_phrase(const std::string& text, const std::string& phrase, Failure kind) {
  EXPECT_EQ(base::phrase_in(text), phrase) << text;
  EXPECT_EQ(base::classify(text), kind) << text;
}

// Which of the two it is depends on bytes that the peer had not read when it ended.
void expect_gone(const std::string& text) {
  const std::string phrase(base::phrase_in(text));
  EXPECT_TRUE(phrase == "Connection closed by peer" || phrase == "Connection reset by peer")
      << text;
  EXPECT_EQ(base::classify(text), Failure::peer_lost) << text;
}

void all_reduce(const ProcessGroup& group) {
  std::vector<at::Tensor> tensors{at::ones({8})};
  torch_port::wait(*group.c10d()->allreduce(tensors), kNoTimeout, *group.c10d());
}

// Makes the end of this process reset its next connection.
void reset_connections_at_exit() {
  const linger at_once{1, 0};
  for (int fd = 3; fd < 1024; ++fd)
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

template <class ErrorType>
ErrorType caught(const ProcessGroup& group) {
  try {
    all_reduce(group);
  } catch (const ErrorType& error) {
    return error;
  } catch (const std::exception& error) {
    throw Error("another type: " + base::describe(error));
  }
  throw Error("nothing was thrown");
}

TEST(ForeignPhrases, GlooSaysThatATimeLimitIsOverAndThenThatItClosedTheConnection) {
  run_ranks(2,
            [](ProcessGroup group) {
              if (group.rank() == 1) return group.barrier(20s);
              expect_phrase(caught<TimeoutError>(group).what(), "imed out",
                            Failure::timeout);
              expect_phrase(caught<PeerLostError>(group).what(),
                            "Application timeout caused pair closure", Failure::peer_lost);
              group.barrier();
            },
            {.timeout = 1s});
}

TEST(ForeignPhrases, GlooSaysThatAPeerHasClosedItsConnectionAndNamesIt) {
  run_ranks(2, [](ProcessGroup group) {
    if (group.rank() == 1) _exit(0);
    const auto error = caught<PeerLostError>(group);
    expect_gone(error.what());
    EXPECT_EQ(error.rank(), 1) << error.what();
  });
}

TEST(ForeignPhrases, GlooSaysThatAPeerHasResetItsConnection) {
  run_ranks(2, [](ProcessGroup group) {
    if (group.rank() == 1) {
      reset_connections_at_exit();
      _exit(0);
    }
    const auto error = caught<PeerLostError>(group);
    expect_gone(error.what());
    EXPECT_EQ(error.rank(), 1);
  });
}

// Tells where its rank listens, and ends the process when it asks for the others.
class LastWords : public c10d::FileStore {
 public:
  using FileStore::FileStore;
  std::vector<uint8_t> get(const std::string&) override { _exit(0); }
  bool check(const std::vector<std::string>&) override { _exit(0); }
  void wait(const std::vector<std::string>&) override { _exit(0); }
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {
    _exit(0);
  }
};

// It tries again until its limit, and does not say that it was refused.
TEST(ForeignPhrases, GlooSaysThatATimeLimitIsOverWhereNobodyListensForAPeer) {
  const testing::TemporaryFolder folder;
  for (const int rank : {1, 2, 3}) {
    Child gone({}, [&] {
      torch_port::make_gloo_backend(
          c10::make_intrusive<LastWords>(folder.path() + "/store", 4), rank, 4, {});
    });
    EXPECT_EQ(gone.finish().code, 0);
  }
  Child last({}, [&] {
    auto store = c10::make_intrusive<c10d::FileStore>(folder.path() + "/store", 4);
    torch_port::make_gloo_backend(store, 0, 4, {.timeout = 2s});
  });
  const std::string text = last.finish().text;
  EXPECT_EQ(base::classify(text), Failure::timeout) << text;
}

c10::intrusive_ptr<c10d::TCPStore> tcp_store(int port, bool serves) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = 1s;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST(ForeignPhrases, StoresSayThatATimeLimitIsOver) {
  Child child({}, [] {
    const testing::TemporaryFolder folder;
    const auto tcp = tcp_store(0, /*serves=*/true);
    expect_phrase(thrown_by([&] { tcp->wait({"never"}, 100ms); }), "ait timeout",
                  Failure::timeout);
    c10d::HashStore hash;
    expect_phrase(thrown_by([&] { hash.wait({"never"}, 100ms); }), "ait timeout",
                  Failure::timeout);
    c10d::FileStore file(folder.path() + "/store", 1);
    file.setTimeout(100ms);
    expect_phrase(thrown_by([&] { file.get("never"); }), "imeout waiting for key",
                  Failure::timeout);
    const int nobodys = tcp_store(0, /*serves=*/true)->getPort();
    expect_phrase(thrown_by([&] { tcp_store(nobodys, /*serves=*/false); }), "imed out",
                  Failure::timeout);
    if (::testing::Test::HasFailure()) throw Error("see above");
  });
  const testing::Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

TEST(ForeignPhrases, StoresSayThatTheirServerIsGone) {
  Child child({}, [] {
    signal(SIGPIPE, SIG_IGN);
    auto server = tcp_store(0, /*serves=*/true);
    const auto asks = tcp_store(server->getPort(), /*serves=*/false);
    const c10::intrusive_ptr<c10d::Store> writes =
        tcp_store(server->getPort(), /*serves=*/false);
    server.reset();
    std::this_thread::sleep_for(200ms);
    expect_phrase(thrown_by([&] { asks->add("number", 1); }),
                  "Connection was likely closed", Failure::peer_lost);
    // The first write is answered with a reset.
    expect_phrase(thrown_by([&] {
                    for (int turn = 0; turn < 3; ++turn) {
                      writes->set("key", std::string("value"));
                      std::this_thread::sleep_for(100ms);
                    }
                  }),
                  "Broken pipe", Failure::peer_lost);
    if (::testing::Test::HasFailure()) throw Error("see above");
  });
  const testing::Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

}  // namespace
}  // namespace brigade
