// Compares the bytes of hook_stats() with the counters of a network device.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>

#include "brigade/brigade.h"
#include "brigade/launch.h"
#include "support/command.h"
#include "support/network_cable.h"
#include "support/network_namespaces.h"

namespace brigade {
namespace {

constexpr const char* kDevice = testing::NetworkCable::kDevice;

class Cable : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = testing::why_no_network_namespaces();
    if (!why.empty()) GTEST_SKIP() << why;
    cable_.emplace();
  }
  std::optional<testing::NetworkCable> cable_;
};

int64_t bytes_on_the_wire() {
  std::ifstream file("/proc/self/net/dev");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(std::string(kDevice) + ":");
    if (colon == std::string::npos) continue;
    std::istringstream fields(line.substr(line.find(':') + 1));
    int64_t value = 0;  // 8 fields on receiving, then the bytes sent
    for (int field = 0; field < 9; ++field) fields >> value;
    return value;
  }
  throw std::runtime_error(std::string("no device ") + kDevice);
}

// The bytes that a rank sends, those to the other host, and those of the host's device.
struct Traffic {
  int64_t counted = 0, away = 0, wire = 0;
};

// Takes some real steps; returns the counts of the hook and of the device.
Traffic train(const ProcessGroup& group, const std::string& spec) {
  torch::nn::Sequential net(torch::nn::Linear(600, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 300));
  DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.6});
  ddp->set_hook(make_hook(spec));
  torch::optim::SGD optimizer(ddp->parameters(), 0.01);
  const auto step = [&] {
    ddp->zero_grad();
    ddp->forward(at::randn({8, 600})).square().mean().backward();
    optimizer.step();
  };
  for (int warm = 0; warm < 2; ++warm) step();  // connections, buckets
  group.barrier();
  const HookTraffic before = ddp->hook_stats().total;
  Traffic traffic{-before.bytes_sent, -before.bytes_to_other_hosts, -bytes_on_the_wire()};
  for (int count = 0; count < 6; ++count) step();
  group.barrier();  // everything has arrived
  const HookTraffic after = ddp->hook_stats().total;
  traffic.counted += after.bytes_sent;
  traffic.away += after.bytes_to_other_hosts;
  traffic.wire += bytes_on_the_wire();
  return traffic;
}

void work(const testing::NetworkCable& cable, int rank, const std::string& table) {
  const ProcessGroup group = cable.join(rank, 2);
  std::ostringstream text;
  bool agree = true;
  for (const char* spec : {"allreduce", "fixed", "fp16", "quantize_per_tensor",
                           "quantize_per_channel", "int8", "int4", "topk:ratio=0.2",
                           "randomk:ratio=0.1", "powersgd:start=0,rank=24,min_rate=1",
                           "powersgd:start=0,rank=48,min_rate=1,rounds=1",
                           "batched_powersgd:start=0,rank=24", "fp16+allreduce"}) {
    const Traffic traffic = train(group, spec);
    const double ratio =
        static_cast<double>(traffic.wire) / static_cast<double>(traffic.counted);
    agree &= ratio > 0.95 && ratio < 1.05 && traffic.away == traffic.counted;
    text << "rank " << rank << std::setw(38) << spec << std::setw(12) << traffic.counted
         << " counted" << std::setw(12) << traffic.wire << " on the wire, ratio "
         << std::setprecision(4) << ratio << "\n";
  }
  if (rank == 0 || !agree) std::ofstream(table, std::ios::app) << text.str();
  if (!agree) throw std::runtime_error("counted and sent differ by more than 5 %");
}

TEST_F(Cable, WhatIsCountedIsWhatIsSentWithinFivePercent) {
  const testing::TemporaryFolder folder;
  const std::string table = folder.path() + "/table";
  setenv("OMP_NUM_THREADS", "1", 0);
  try {
    launch(2, [&](int rank) { work(*cable_, rank, table); },
           {.grace = std::chrono::milliseconds(500),
            .wall = std::chrono::milliseconds(90'000),
            .prefix = false});
  } catch (const LaunchError& error) {
    ADD_FAILURE() << error.what();
  }
  std::cout << std::ifstream(table).rdbuf();
}

constexpr std::array kOnSharedHosts{"int8", "fp16",
                                    "node+powersgd:start=0,rank=24,min_rate=1",
                                    "node+topk:flat=1,ratio=0.2"};

// The bytes that a host sends in train(), with that many ranks on each of the two hosts.
void work_on_shared_hosts(const testing::NetworkCable& cable, int rank, int ranks_per_host,
                          const std::string& table) {
  const ProcessGroup group = cable.join(rank, 2 * ranks_per_host);
  for (const char* spec : kOnSharedHosts) {
    const Traffic traffic = train(group, spec);
    at::Tensor away = at::full({1}, traffic.away, at::kLong);
    group.all_reduce(away);
    if (rank != 0) continue;
    std::ofstream(table, std::ios::app)
        << spec << " " << ranks_per_host << " " << away.item<int64_t>() / 2 << " "
        << traffic.wire << std::endl;
  }
}

TEST_F(Cable, AHostSendsNoMoreWithMoreRanks) {
  const testing::TemporaryFolder folder;
  const std::string table = folder.path() + "/table";
  setenv("OMP_NUM_THREADS", "1", 0);
  try {
    for (int each : {1, 2, 4}) {
      launch(2 * each, [&](int rank) { work_on_shared_hosts(*cable_, rank, each, table); },
             {.grace = std::chrono::milliseconds(500),
              .wall = std::chrono::milliseconds(90'000),
              .prefix = false});
    }
  } catch (const LaunchError& error) {
    ADD_FAILURE() << error.what();
  }
  std::map<std::string, double> alone;
  std::ifstream rows(table);
  int count = 0;
  std::string spec;
  double each = 0, counted = 0, wire = 0;
  for (; rows >> spec >> each >> counted >> wire; ++count) {
    std::cout << spec << ", 2 hosts x " << each << ": " << counted << " counted, " << wire
              << " on the wire\n";
    if (each == 1) alone[spec] = wire;
    EXPECT_NEAR(wire / alone[spec], 1, 0.05) << spec << " x " << each;
    EXPECT_NEAR(wire / counted, 1, 0.05) << spec << " x " << each;
  }
  EXPECT_EQ(count, 3 * std::ssize(kOnSharedHosts));
}

}  // namespace
}  // namespace brigade
