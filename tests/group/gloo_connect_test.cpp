// Connects to ranks that have come to the store but never connect.
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "launch/child.h"
#include "support/command.h"
#include "torch_port/gloo_backend.h"

namespace brigade {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::Outcome;

// Says where it listens, and then does nothing more.
class SilentStore : public c10d::FileStore {
 public:
  using FileStore::FileStore;
  std::vector<uint8_t> get(const std::string&) override {
    return stop<std::vector<uint8_t>>();
  }
  bool check(const std::vector<std::string>&) override { return stop<bool>(); }
  void wait(const std::vector<std::string>&) override { stop<int>(); }
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {
    stop<int>();
  }

 private:
  template <class Result>
  Result stop() {
    while (true) pause();
  }
};

// Chance decides whether a rank connects to a peer or waits for it: with three peers it
// often waits for one.
TEST(GlooConnect, ASilentPeerIsGivenUpAtTheTimeLimit) {
  constexpr std::chrono::milliseconds kLimit = 4s;
  const testing::TemporaryFolder folder;
  const auto connect = [&](c10::intrusive_ptr<c10d::Store> store, int rank) {
    torch_port::make_gloo_backend(std::move(store), rank, 4, {.timeout = kLimit});
  };
  std::vector<std::unique_ptr<Child>> silent;
  for (int rank : {1, 2, 3}) {
    silent.push_back(std::make_unique<Child>(testing::Variables{}, [&] {
      connect(c10::make_intrusive<SilentStore>(folder.path() + "/store", -1), rank);
    }));
  }
  Child waiting({}, [&] {
    const auto begin = std::chrono::steady_clock::now();
    try {
      connect(c10::make_intrusive<c10d::FileStore>(folder.path() + "/store", -1), 0);
    } catch (const std::exception&) {
    }
    // Gloo itself would wait five times that long.
    if (std::chrono::steady_clock::now() - begin > 3 * kLimit) throw Error("too late");
  });
  const Outcome outcome = waiting.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

}  // namespace
}  // namespace brigade
