#include "hooks/auto/candidate_cost.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "codec/codecs.h"
#include "exchange/chunks.h"
#include "hooks/hook_text.h"
#include "hooks/sparsified.h"

namespace brigade {
namespace {

constexpr int64_t kSample = int64_t{1} << 18;  // values

// Of "topk:ratio=0.05".
double ratio_of(const std::string& spec) {
  const size_t place = spec.find("ratio=");
  return place == std::string::npos ? kDefaultRatio : std::atof(spec.c_str() + place + 6);
}

std::unique_ptr<Codec> codec_of(std::string_view name, const std::string& spec) {
  if (name == "topk") return make_top_k_codec(ratio_of(spec));
  if (name == "fp16") return make_fp16_codec();
  if (name == "bf16") return make_bf16_codec();
  if (name == "int8") return make_int8_codec();
  if (name == "int4") return make_int4_codec();
  if (name == "quantize_per_channel") return make_affine_block_codec();
  if (name == "quantize_per_tensor") return make_affine_tensor_codec();
  return nullptr;
}

// Of two ranks: all values encoded and decoded, and half of them decoded and added.
double coding_seconds(const Codec& codec) {
  const at::Tensor values = at::ones({kSample}), sum = at::zeros({kSample});
  const at::Tensor wire = at::empty({codec.wire_bytes(kSample)}, at::kByte);
  const at::Tensor residual = codec.takes_residual() ? at::zeros({kSample}) : at::Tensor();
  double best = 1;
  for (int repeat = 0; repeat < 4; ++repeat) {  // the first one warms up
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    codec.encode(values, kSample, 1, residual, wire);
    codec.decode(wire, kSample, values);
    const auto middle = Clock::now();
    codec.decode_add(wire, kSample, sum);
    const auto end = Clock::now();
    best = std::min(best, std::chrono::duration<double>(middle - begin).count() +
                              std::chrono::duration<double>(end - middle).count() / 2);
  }
  return best;
}

// Of one addition to all values.
double adding_seconds() {
  const at::Tensor values = at::ones({kSample}), sum = at::zeros({kSample});
  double best = 1;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    sum.add_(values);
    best = std::min(
        best,
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

double predicted(const cost::Job& job, const cost::Machine& machine,
                 const cost::HookCost& cost, const Reductions& reductions) {
  std::vector<cost::BucketLoad> loads;
  for (const cost::ShapeList& shapes : reductions.buckets)
    loads.push_back(cost::load_of(shapes, cost, cost::approximation_rank(cost.spec)));
  return cost::predict(job, machine, cost, loads).step_seconds;
}

double bytes_sent(const Reductions& reductions, const cost::HookCost& cost) {
  double bytes = 0;
  for (const cost::ShapeList& shapes : reductions.buckets)
    bytes += cost::load_of(shapes, cost, 1).payload_bytes;
  return 2.0 * (reductions.ranks - 1) / reductions.ranks * bytes;
}

}  // namespace

cost::HookCost candidate_cost(const std::string& spec, bool measure) {
  const std::string_view head = hook_head(spec);
  const std::string_view name = head.substr(head.rfind('+') + 1);
  cost::HookCost cost{.spec = spec, .kind = cost::kind_of(name)};
  if (name == "allreduce") {
    cost.bytes_per_value = head == name ? 4 : 2;  // behind a wrapper: of half values
  } else if (const auto codec = codec_of(name, spec)) {
    cost.bytes_per_value = double(codec->wire_bytes(kSample)) / kSample;
    cost.piece_values = kSegment;
    cost.piece_values_by_host = kSegmentByHost;
    if (measure) cost.seconds_per_value = coding_seconds(*codec) / kSample;
  } else if (name == "randomk") {
    // Added to the error, looked at for what is not finite, and zeroed.
    cost.bytes_per_value = 4 * ratio_of(spec);
    if (measure) cost.seconds_per_value = 2.5 * adding_seconds() / kSample;
  } else if (name == "fixed") {
    cost.bytes_per_value = 4;
    if (measure) cost.seconds_per_value = adding_seconds() / kSample;
  } else {
    cost.bytes_per_value = 1;
  }
  if (cost.kind.low_rank && spec.find("rounds=1") != std::string::npos)
    cost.kind.phases = 1;
  return cost;
}

std::vector<double> predict_steps(const WindowTimes& exact, const Reductions& reductions,
                                  const std::vector<cost::HookCost>& costs) {
  const double compute = std::max(exact.step - exact.exposed, 1e-6);
  cost::Job job{
      .hosts = std::max(1, reductions.hosts),
      .ranks_per_host = std::max(1, reductions.ranks / std::max(1, reductions.hosts)),
      .compute_seconds = compute,
      .forward_share = std::clamp(1 - exact.backward / compute, 0.0, 1.0),
      .cores_per_rank = 4};
  cost::Machine machine;
  const double seconds_per_byte =
      exact.busy / std::max(1.0, bytes_sent(reductions, costs.front()));
  if (job.hosts > 1) {
    job.link_bits = 8 / (seconds_per_byte * cost::kGoodput);
  } else {
    machine.transport_seconds_per_byte = seconds_per_byte;
  }
  // The model need not be right about everything, only about differences.
  const double scale =
      exact.step / std::max(1e-9, predicted(job, machine, costs.front(), reductions));
  std::vector<double> seconds;
  for (const cost::HookCost& cost : costs)
    seconds.push_back(scale * predicted(job, machine, cost, reductions));
  return seconds;
}

}  // namespace brigade
