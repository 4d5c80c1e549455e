#include "plan/probe.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/cuda.h>

#include <algorithm>
#include <ctime>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "brigade/error.h"
#include "common/answers.h"
#include "common/workers.h"
#include "plan/cost.h"
#include "plan/others_load.h"

namespace brigade::tool {
namespace {

using nlohmann::json;

constexpr int64_t kSmall = int64_t{4} << 20, kLarge = int64_t{32} << 20;
// Every hook is measured so often, the others in between: what disturbs one round seldom
// disturbs the next.
constexpr int kRounds = 3;
constexpr int64_t kMessage = int64_t{2} << 20;  // bytes to the other rank

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The lower quartile of several calls, by the given clock.
template <class Body>
double typical(int count, clockid_t clock, const Body& body) {
  std::vector<double> seconds;
  for (int call = 0; call < count; ++call) {
    const double begin = seconds_of(clock);
    body();
    seconds.push_back(seconds_of(clock) - begin);
  }
  return quantile(seconds, 0.25);
}

Machine probe_machine(const ProcessGroup& group, at::Device device) {
  const clockid_t clock = device.is_cuda() ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID;
  const auto settle = [&] {
    if (device.is_cuda()) torch::cuda::synchronize();
  };
  const at::Tensor one = at::zeros({1}, device);
  group.all_reduce(one);
  Machine machine;
  // Of two ranks: there and back.
  machine.latency = typical(30, CLOCK_MONOTONIC,
                            [&] {
                              group.all_reduce(one);
                              settle();
                            }) /
                    2;
  at::Tensor out = at::ones({2 * kMessage}, at::device(device).dtype(at::kByte)),
             in = at::zeros_like(out);
  std::vector<int64_t> even;
  const auto exchange = [&] {
    group.c10d()->alltoall_base(in, out, even, even)->wait();
    settle();
  };
  exchange();
  machine.transport_seconds_per_byte =
      typical(12, clock, exchange) / static_cast<double>(kMessage);
  return machine;
}

json sample_of(const ReductionTimes& times, int64_t bytes, at::Device device) {
  const auto& seconds = device.is_cuda() ? times.seconds : times.cpu_seconds;
  const HookTraffic& traffic = times.traffic;
  const double coding = traffic.encode_seconds + traffic.decode_seconds;
  // The lower quartile: what is slower is other programs, or memory that lies badly.
  const double quarter = quantile(seconds, 0.25);
  return {{"values", bytes / 4},
          {"cpu", quarter},
          {"wire", traffic.bytes_sent},
          {"collectives", traffic.collectives},
          {"buckets", times.buckets},
          {"decode_share", coding > 0 ? traffic.decode_seconds / coding : 0},
          {"spread",
           (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / std::max(quarter, 1e-9)}};
}

// The one whose time is the median.
json middle_of(std::vector<json> rounds) {
  std::ranges::sort(rounds, {}, [](const json& one) { return one["cpu"].get<double>(); });
  return rounds[rounds.size() / 2];
}

ProbeSample sample_from(const json& answer, double base) {
  return {.values = answer["values"],
          .cpu_seconds = answer["cpu"],
          .base_seconds = base,
          .wire_bytes = answer["wire"],
          .collectives = answer["collectives"],
          .buckets = answer["buckets"],
          .decode_share = answer["decode_share"],
          .spread = answer["spread"]};
}

// In a worker. Answers: small and large samples, noop's first, then the machine.
void measure(const Worker& worker, const std::vector<std::string>& specs,
             const Answers& answers) {
  // Not structured bindings: clang 14 captures none in a lambda.
  const auto& group = worker.group;
  const auto& device = worker.device;
  std::vector<double> latency, transport;
  const auto look_at_machine = [&] {
    const Machine machine = probe_machine(group, device);
    latency.push_back(machine.latency);
    transport.push_back(machine.transport_seconds_per_byte);
  };
  look_at_machine();
  for (const int64_t bytes : {kSmall, kLarge}) {
    Reduction reduction(group, shapes_of_size(bytes), device);
    std::vector<std::vector<json>> samples(specs.size());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t index = 0; index < specs.size(); ++index) {
        const ReductionTimes times = reduction.time(specs[index], 0.06, 4, 8);
        samples[index].push_back(sample_of(times, bytes, device));
      }
    }
    for (std::vector<json>& rounds : samples) {
      if (group.rank() == 0) answers.add(middle_of(std::move(rounds)));
    }
    look_at_machine();
  }
  if (group.rank() == 0) {
    answers.add(
        {{"latency", quantile(latency, 0.5)}, {"transport", quantile(transport, 0.5)}});
  }
}

}  // namespace

Probe probe(const std::vector<std::string>& specs, const std::string& device) {
  std::vector<std::string> with_noop{"noop"};
  with_noop.insert(with_noop.end(), specs.begin(), specs.end());
  const Answers answers;
  const OthersLoad others;
  run_workers(measuring_workers(2, device),
              [&](const Worker& worker) { measure(worker, with_noop, answers); });
  const double others_load = others.share();
  const auto found = answers.all();
  const size_t count = with_noop.size();
  if (found.size() != 1 + 2 * count)
    throw Error("the probe gave " + std::to_string(found.size()) + " answers instead of " +
                std::to_string(1 + 2 * count));
  Probe result;
  result.machine = {.transport_seconds_per_byte = found.back()["transport"],
                    .latency = found.back()["latency"]};
  result.cores = cores_for(1);
  const double small_base = found[0]["cpu"], large_base = found[count]["cpu"];
  for (size_t index = 0; index < specs.size(); ++index) {
    result.hooks.push_back(cost_of(specs[index], result.machine,
                                   sample_from(found[1 + index], small_base),
                                   sample_from(found[1 + count + index], large_base)));
    result.hooks.back().others_load = others_load;
  }
  if (device == "cuda") {
    // A link's bytes are the link's affair alone, and all segments are of one length.
    result.machine.transport_seconds_per_byte = 0;
    for (HookCost& cost : result.hooks) cost.piece_values_by_host = 0;
  }
  return result;
}

int cores_for(int ranks) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks));
}

}  // namespace brigade::tool
