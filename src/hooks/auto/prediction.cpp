#include "hooks/auto/prediction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <queue>
#include <tuple>

namespace brigade::cost {
namespace {

constexpr double kFirstBucket = 1024.0 * 1024, kBucket = 25.0 * 1024 * 1024;

double values_of_shape(const std::vector<int64_t>& shape) {
  double values = 1;
  for (int64_t side : shape) values *= static_cast<double>(side);
  return values;
}

// Values that PowerSGD sends of one parameter: both factors, or with one phase either in
// turns; or all of it where that is not smaller by the hook's default factor of 2.
double low_rank_values(const std::vector<int64_t>& shape, int rank, int phases) {
  const double values = values_of_shape(shape);
  if (shape.size() < 2) return values;
  const double rows = static_cast<double>(shape[0]);
  const double columns = rows > 0 ? values / rows : 0;
  const double factors = (rows + columns) * std::min({double(rank), rows, columns});
  return factors * 2 < values ? factors * phases / 2 : values;
}

// Threads and the link as servers: each does one thing at a time, in the order of asking.
struct Servers {
  explicit Servers(int cores) : core_free(static_cast<size_t>(std::max(1, cores)), 0.0) {}

  // On a thread of its own kind and on any core; gives the end.
  double compute(double ready, double seconds, double& thread_free) {
    double& core = *std::ranges::min_element(core_free);
    const double end = std::max({ready, thread_free, core}) + seconds;
    return thread_free = core = end;
  }
  double send(double ready, double seconds) {
    return link_free = std::max(ready, link_free) + seconds;
  }

  std::vector<double> core_free;
  double link_free = 0;
  std::array<double, 8> station_free{};
  double transport_free = 0;
  double backward_free = 0;
};

// One phase of one piece: what a rank sends, what its host sends to others, and how many
// messages follow one another.
struct PhaseTraffic {
  double rank_bytes, host_bytes, hops;
};

class Simulation {
 public:
  Simulation(const Job& job, const Machine& machine, const HookCost& cost)
      : job_(job),
        machine_(machine),
        cost_(cost),
        ranks_(job.ranks()),
        servers_(job.cores_per_rank) {}

  Prediction run(const std::vector<BucketLoad>& buckets) {
    double all_values = 0;
    for (const BucketLoad& bucket : buckets) all_values += bucket.values;
    const double forward = job_.compute_seconds * job_.forward_share;
    const double backward = job_.compute_seconds - forward;
    start_slices(buckets, all_values, forward, backward);
    while (!waiting_.empty()) {
      const Event event = waiting_.top();
      waiting_.pop();
      advance(event);
    }
    found_.step_seconds = std::max(end_, job_.compute_seconds);
    found_.exposed_seconds = found_.step_seconds - job_.compute_seconds;
    return found_;
  }

 private:
  // A piece is at its `stage`-th stretch of computing; -1: the backward pass before a
  // bucket.
  struct Event {
    double ready;
    size_t order;
    int stage;
    BucketLoad load;
    double seconds;  // of the hook for the whole piece, or of the backward slice
    size_t bucket;
    bool operator<(const Event& other) const {
      return std::tie(ready, order) > std::tie(other.ready, other.order);
    }
  };

  // Only the first slice waits from the start: each brings the next.
  void start_slices(const std::vector<BucketLoad>& buckets, double all_values,
                    double forward, double backward) {
    buckets_ = &buckets;
    for (const BucketLoad& bucket : buckets) {
      const double share = all_values > 0 ? bucket.values / all_values : 0;
      slices_.push_back(backward * share);
    }
    if (buckets.empty()) return;
    end_ = forward;
    waiting_.push({forward, order_++, -1, buckets[0], slices_[0], 0});
  }

  void advance(const Event& event) {
    if (event.stage < 0) {
      const double end = backward_slice(event);
      end_ = std::max(end_, end);
      start_pieces(event.bucket, end);
      const size_t next = event.bucket + 1;
      if (next < buckets_->size())
        waiting_.push({end, order_++, -1, (*buckets_)[next], slices_[next], next});
      return;
    }
    if (cost_.kind.route == Route::none) return;
    const int phases = cost_.kind.phases;
    const double share =
        event.stage == phases ? cost_.decode_share : (1 - cost_.decode_share) / phases;
    const double seconds = event.seconds * share;
    found_.cpu_seconds += seconds;
    double end = servers_.compute(event.ready, seconds,
                                  servers_.station_free[static_cast<size_t>(event.stage)]);
    if (event.stage < phases) {
      end = collective(end, event.load);
      Event next = event;
      next.ready = end;
      ++next.stage;
      waiting_.push(next);
    }
    end_ = std::max(end_, end);
  }

  double backward_slice(const Event& event) {
    if (job_.compute_on_cpu)
      return servers_.compute(event.ready, event.seconds, servers_.backward_free);
    return event.ready + event.seconds;
  }

  void start_pieces(size_t bucket, double ready) {
    const BucketLoad& load = (*buckets_)[bucket];
    if (ranks_ < 2 || load.values <= 0) return;
    const double pieces = pieces_of(cost_, load.values, by_host());
    const double seconds = (cost_.seconds_per_value * load.values * more_ranks() +
                            cost_.step_seconds / double(buckets_->size())) /
                           pieces;
    const BucketLoad part{load.values / pieces, load.payload_bytes / pieces};
    for (double piece = 0; piece < pieces; ++piece)
      waiting_.push({ready, order_++, 0, part, seconds, bucket});
  }

  // What more ranks than two add to a hook's own work. Two phases: n values encoded and n
  // decoded, and (W - 1) / W n decoded and added by the owners. A ring adds as many values
  // as it receives in its first half.
  double more_ranks() const {
    const double others = (ranks_ - 1.0) / ranks_;
    if (cost_.kind.low_rank || cost_.kind.sparse) return 1;
    if (by_host()) {
      // A rank encodes, and decodes and adds up, its part only; it decodes everything, and
      // adds up inside its host, which is half of a codec's work.
      const double part = 1.0 / job_.ranks_per_host;
      const double between = part * (1 + (job_.hosts - 1.0) / job_.hosts);
      return (between + 1 + (1 - part) / 2) / 2.5;
    }
    return cost_.kind.route == Route::ring ? 2 * others : (2 + others) / 2.5;
  }

  double collective(double ready, const BucketLoad& load) {
    const PhaseTraffic traffic = by_host() ? traffic_by_host(load) : flat_traffic(load);
    const double rate = job_.link_bits / 8 * kGoodput;
    const double link = rate > 0 ? traffic.host_bytes / rate : 0;
    const double transport = traffic.rank_bytes * machine_.transport_seconds_per_byte;
    found_.wire_bytes += traffic.rank_bytes;
    found_.link_seconds += link;
    found_.cpu_seconds += transport;
    const double carried = servers_.send(ready, link);
    const double handled = servers_.compute(ready, transport, servers_.transport_free);
    return std::max(carried, handled) + traffic.hops * machine_.latency;
  }

  PhaseTraffic flat_traffic(const BucketLoad& load) const {
    const bool ring = cost_.kind.route == Route::ring;
    const double sent =
        2.0 * (ranks_ - 1) / ranks_ * load.payload_bytes / cost_.kind.phases;
    // Of a ring one rank of a host sends to the next host; of an all-to-all all do, to all
    // who are elsewhere.
    double crossing = job_.hosts > 1 ? 1 : 0;
    if (job_.hosts > 1 && !ring) {
      const double here = job_.ranks_per_host;
      crossing = here * (ranks_ - here) / (ranks_ - 1);
    }
    return {sent, sent * crossing, ring ? 2.0 * (ranks_ - 1) : ranks_ - 1.0};
  }

  // Where ranks share hosts: a host sends as if it had one rank. Inside, a rank sends the
  // other parts as float32, and later its own, encoded, to all others.
  bool by_host() const { return goes_by_host(cost_, job_.hosts, job_.ranks_per_host); }
  PhaseTraffic traffic_by_host(const BucketLoad& load) const {
    const double phases = cost_.kind.phases, here = job_.ranks_per_host;
    const double between =
        2.0 * (job_.hosts - 1) / job_.hosts * load.payload_bytes / phases;
    const double inside =
        (here - 1) / here * (4 * load.values + load.payload_bytes) / phases;
    return {between / here + inside, between, job_.hosts - 1 + here - 1};
  }

  const Job& job_;
  const Machine& machine_;
  const HookCost& cost_;
  const int ranks_;
  Servers servers_;
  std::priority_queue<Event> waiting_;
  const std::vector<BucketLoad>* buckets_ = nullptr;
  std::vector<double> slices_;
  size_t order_ = 0;
  double end_ = 0;
  Prediction found_;
};

}  // namespace

HookKind kind_of(std::string_view name) {
  if (name == "noop") return {Route::none, 0, false};
  if (name == "allreduce") return {Route::ring, 1, false};
  if (name == "randomk") return {.route = Route::ring, .phases = 1, .sparse = true};
  if (name == "powersgd" || name == "batched_powersgd") return {Route::ring, 2, true};
  if (name == "topk") return {.route = Route::all_to_all, .phases = 2, .sparse = true};
  if (name == "fixed") return {Route::all_to_all, 2, false, false};
  return {};
}

int approximation_rank(const std::string& spec) {
  const size_t place = spec.find("rank=");
  return place == std::string::npos ? 1 : std::max(1, std::atoi(spec.c_str() + place + 5));
}

BucketLoad load_of(const ShapeList& shapes, const HookCost& cost, int rank) {
  BucketLoad load;
  for (const auto& shape : shapes) {
    const double values = values_of_shape(shape);
    load.values += values;
    load.payload_bytes += cost.kind.low_rank
                              ? 4 * low_rank_values(shape, rank, cost.kind.phases)
                              : values * cost.bytes_per_value;
  }
  if (cost.spec.find("batched_") != std::string::npos) {
    const double side = std::ceil(std::sqrt(load.values));
    load.payload_bytes = 4 * std::min(load.values, 2 * side * rank);
  }
  return load;
}

std::vector<BucketLoad> buckets_of(const ShapeList& shapes, const HookCost& cost,
                                   int rank) {
  std::vector<BucketLoad> buckets;
  ShapeList open;
  double values = 0;
  const auto close = [&] {
    buckets.push_back(load_of(open, cost, rank));
    open.clear();
    values = 0;
  };
  // Gradients come from the last parameter to the first.
  for (auto shape = shapes.rbegin(); shape != shapes.rend(); ++shape) {
    open.push_back(*shape);
    values += values_of_shape(*shape);
    if (values * 4 >= (buckets.empty() ? kFirstBucket : kBucket)) close();
  }
  if (values > 0) close();
  return buckets;
}

bool goes_by_host(const HookCost& cost, int hosts, int ranks_per_host) {
  return cost.kind.route == Route::all_to_all && cost.kind.knows_hosts && hosts > 1 &&
         ranks_per_host > 1 && cost.spec.find("flat=1") == std::string::npos;
}

double pieces_of(const HookCost& cost, double values, bool by_host) {
  const bool other = by_host && cost.piece_values_by_host > 0;
  const double length = other ? cost.piece_values_by_host : cost.piece_values;
  return length > 0 ? std::max(1.0, std::ceil(values / length)) : 1.0;
}

Prediction predict(const Job& job, const Machine& machine, const HookCost& cost,
                   const std::vector<BucketLoad>& buckets) {
  return Simulation(job, machine, cost).run(buckets);
}

}  // namespace brigade::cost
