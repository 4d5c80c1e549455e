#include "plan/simulation/network_probe.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bench/reduction.h"
#include "common/answers.h"
#include "common/shaped_link.h"
#include "common/workers.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

constexpr int64_t kTiny = int64_t{16} << 10;  // bytes of gradients
constexpr int64_t kSent = int64_t{6} << 20;   // bytes, about, that a rank sends to others
constexpr int kTimes = 5;                     // of which the median counts

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What this process computes for a step of tiny gradients.
double tiny_step(Reduction& reduction, const std::string& spec) {
  const ReductionTimes times = reduction.time(spec, 0.05, 10, 100);
  double sum = 0;
  for (const double seconds : times.cpu_seconds) sum += seconds;
  return sum / static_cast<double>(times.cpu_seconds.size());
}

// What this process computes for a byte to those who are not on its host.
double byte_seconds(const ProcessGroup& group, int ranks_per_host) {
  const int ranks = group.size(), host = group.rank() / ranks_per_host;
  const int64_t part = kSent / (ranks - ranks_per_host);
  std::vector<int64_t> lengths(static_cast<size_t>(ranks), part);
  const int first_here = host * ranks_per_host;
  std::fill_n(lengths.begin() + first_here, ranks_per_host, 0);
  const int64_t sent = part * (ranks - ranks_per_host);
  at::Tensor out = at::ones({sent}, at::kByte), in = at::zeros_like(out);
  const double begin = processor_seconds();
  group.c10d()->alltoall_base(in, out, lengths, lengths)->wait();
  return (processor_seconds() - begin) / static_cast<double>(sent);
}

void measure_network(const Worker& worker, int ranks_per_host, const Answers& answers) {
  Reduction reduction(worker.group, shapes_of_size(kTiny), worker.device);
  byte_seconds(worker.group, ranks_per_host);
  std::vector<double> flat, by_host, ring, bytes;
  for (int time = 0; time < kTimes; ++time) {
    const double nothing = tiny_step(reduction, "noop");
    flat.push_back(tiny_step(reduction, "fp16:flat=1") - nothing);
    by_host.push_back(tiny_step(reduction, "fp16") - nothing);
    ring.push_back(tiny_step(reduction, "allreduce") - nothing);
    bytes.push_back(byte_seconds(worker.group, ranks_per_host));
  }
  // Two phases of one message to each other rank; by host, to each other one of one's
  // place, and before and after them to each mate. A ring has two rounds for each other
  // rank.
  const double ranks = worker.group.size(), hosts = ranks / ranks_per_host;
  const double others = 2 * (ranks - 1);
  const double by_host_others = 2 * (hosts - 1 + ranks_per_host - 1);
  answers.add({quantile(flat, 0.5) / others, quantile(by_host, 0.5) / by_host_others,
               quantile(ring, 0.5) / others, quantile(bytes, 0.5)});
}

}  // namespace

NetworkCost probe_network(int hosts, int ranks_per_host, double link_bits) {
  std::unique_ptr<ShapedLink> link;
  if (link_bits > 0 && ShapedLink::missing().empty())
    link = std::make_unique<ShapedLink>(hosts, link_bits, ranks_per_host);
  const int ranks = hosts * ranks_per_host;
  const Answers answers;
  run_workers(measuring_workers(ranks, "cpu", link.get()), [&](const Worker& worker) {
    // Over loopback everybody is as far away as on another host.
    measure_network(worker, link ? ranks_per_host : 1, answers);
  });
  NetworkCost mean;
  for (const json& answer : answers.all()) {
    mean.message_seconds += std::max(0.0, answer[0].get<double>()) / ranks;
    mean.host_message_seconds += std::max(0.0, answer[1].get<double>()) / ranks;
    mean.ring_message_seconds += std::max(0.0, answer[2].get<double>()) / ranks;
    mean.link_seconds_per_byte += answer[3].get<double>() / ranks;
  }
  return mean;
}

json json_of(const NetworkCost& network) {
  return {{"message_us", network.message_seconds * 1e6},
          {"host_message_us", network.host_message_seconds * 1e6},
          {"ring_message_us", network.ring_message_seconds * 1e6},
          {"link_ns_per_byte", network.link_seconds_per_byte * 1e9}};
}

cost::HookCost without_messages(cost::HookCost cost, const NetworkCost& network) {
  const double phases = cost.kind.phases;
  if (cost.kind.route == cost::Route::ring) {
    // Of two ranks: two messages for each all-reduce.
    cost.step_seconds =
        std::max(0.0, cost.step_seconds - 2 * phases * network.ring_message_seconds);
    return cost;
  }
  const double piece = phases * network.message_seconds;
  if (cost.piece_values > 0) {
    cost.seconds_per_value =
        std::max(0.0, cost.seconds_per_value - piece / cost.piece_values);
  }
  cost.step_seconds = std::max(0.0, cost.step_seconds - piece);
  return cost;
}

}  // namespace brigade::tool
