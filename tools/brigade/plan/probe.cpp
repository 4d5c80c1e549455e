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

// In a worker. Answers: the machine, then small and large samples, noop's first.
void measure(const Worker& worker, const std::vector<std::string>& specs,
             const Answers& answers) {
  const auto& [group, device] = worker;
  const Machine machine = probe_machine(group, device);
  if (group.rank() == 0) {
    answers.add(
        {{"latency", machine.latency}, {"transport", machine.transport_seconds_per_byte}});
  }
  for (const int64_t bytes : {kSmall, kLarge}) {
    Reduction reduction(group, shapes_of_size(bytes), device);
    for (const std::string& spec : specs) {
      const ReductionTimes times = reduction.time(spec, 0.12, 5, 12);
      if (group.rank() == 0) answers.add(sample_of(times, bytes, device));
    }
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
  result.machine = {.transport_seconds_per_byte = found[0]["transport"],
                    .latency = found[0]["latency"]};
  result.cores = cores_for(1);
  const double small_base = found[1]["cpu"], large_base = found[1 + count]["cpu"];
  for (size_t index = 0; index < specs.size(); ++index) {
    result.hooks.push_back(cost_of(specs[index], result.machine,
                                   sample_from(found[2 + index], small_base),
                                   sample_from(found[2 + count + index], large_base)));
    result.hooks.back().others_load = others_load;
  }
  // On a GPU a link's bytes are the link's affair alone.
  if (device == "cuda") result.machine.transport_seconds_per_byte = 0;
  return result;
}

int cores_for(int ranks) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return std::max(1, cores / std::max(1, ranks));
}

}  // namespace brigade::tool
