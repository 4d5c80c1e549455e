#include "plan/simulation/simulation.h"

#include <cmath>
#include <random>

#include "plan/simulation/servers.h"

namespace brigade::tool {
namespace {

// The backward pass before a bucket gives others their turn so often.
constexpr int kSlices = 4;
constexpr unsigned kSeed = 1;

struct Piece {
  double values, payload;
  double work;  // seconds of the hook's computing, with two ranks
  size_t bucket;
};

// Of one piece's collective among one group of ranks.
struct Meeting {
  int arrived = 0;
  double last = 0;  // the last one's coming, or the end of what was sent, if later
};

enum class What : std::uint8_t {
  slice,  // of the backward pass begins
  come,   // a piece has come to a stage
  done,   // a stage's computing for a piece is over
};

struct Event {
  double time;
  int64_t order;
  What what;
  int rank;
  size_t stage;  // of the piece
  size_t item;   // the piece, or the slice
  bool operator<(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

// A thread that serves one piece at a time, in the order of their coming.
struct Station {
  bool busy = false;
  std::queue<size_t> waiting;  // pieces
};

struct Rank {
  std::vector<Station> stations;
  Server inside;
  double speed = 1;  // of its computing: more is slower
  double computed = 0;
};

class Play {
 public:
  Play(const Cluster& cluster, const HookCost& cost, const std::vector<BucketLoad>& buckets)
      : cluster_(cluster), links_(static_cast<size_t>(cluster.hosts)) {
    cut(cost, buckets);
    const double typical = pieces_.empty() ? 0 : pieces_.front().payload;
    stages_ = stages_of(cluster, cost, typical);
    for (int pool = 0; pool <= pool_of(cluster.ranks() - 1); ++pool)
      cores_.emplace_back(cluster.cores);
    make_ranks();
    meetings_.resize(pieces_.size() * stages_.size() * groups());
  }

  SimulatedStep run() {
    for (int rank = 0; rank < cluster_.ranks(); ++rank) {
      const double forward =
          cluster_.compute_seconds * cluster_.forward_share * ranks_[rank].speed;
      add(computed(rank, 0, forward), What::slice, rank, 0, 0);
    }
    while (!waiting_.empty()) {
      const Event event = waiting_.top();
      waiting_.pop();
      ++found_.events;
      switch (event.what) {
        case What::slice:
          go_back(event);
          break;
        case What::come:
          come(event);
          break;
        case What::done:
          done(event);
          break;
      }
    }
    finish();
    return found_;
  }

 private:
  void cut(const HookCost& cost, const std::vector<BucketLoad>& buckets) {
    double all = 0;
    for (const BucketLoad& bucket : buckets) all += bucket.values;
    const double backward = cluster_.compute_seconds * (1 - cluster_.forward_share);
    for (size_t index = 0; index < buckets.size(); ++index) {
      const BucketLoad& load = buckets[index];
      slices_.push_back(all > 0 ? backward * load.values / all / kSlices : 0);
      first_piece_.push_back(pieces_.size());
      const double count = cost.piece_values > 0
                               ? std::max(1.0, std::ceil(load.values / cost.piece_values))
                               : 1.0;
      const double work = (cost.seconds_per_value * load.values +
                           cost.step_seconds / double(buckets.size())) /
                          count;
      for (double piece = 0; piece < count && load.values > 0; ++piece)
        pieces_.push_back({load.values / count, load.payload_bytes / count, work, index});
    }
    first_piece_.push_back(pieces_.size());
  }

  void make_ranks() {
    std::mt19937 random(kSeed);
    std::normal_distribution<double> deviation(1, std::max(cluster_.jitter, 1e-12));
    ranks_.resize(static_cast<size_t>(cluster_.ranks()));
    for (Rank& rank : ranks_) {
      rank.stations.resize(stages_.size());
      if (cluster_.jitter > 0) rank.speed = std::max(0.1, deviation(random));
    }
    ranks_.back().speed *= cluster_.straggler;
  }

  int host_of(int rank) const { return rank / cluster_.ranks_per_host; }
  int place_of(int rank) const { return rank % cluster_.ranks_per_host; }
  int pool_of(int rank) const {
    switch (cluster_.shared_by) {
      case Sharing::rank:
        return rank;
      case Sharing::host:
        return host_of(rank);
      case Sharing::machine:
        return 0;
    }
    return 0;
  }
  Cores& cores_of(int rank) { return cores_[static_cast<size_t>(pool_of(rank))]; }
  size_t groups() const {
    return static_cast<size_t>(std::max(cluster_.hosts, cluster_.ranks_per_host));
  }

  void add(double time, What what, int rank, size_t stage, size_t item) {
    waiting_.push({time, order_++, what, rank, stage, item});
  }

  // The model's own computing.
  double computed(int rank, double ready, double seconds) {
    ranks_[rank].computed += seconds;
    return cluster_.compute_takes_cores ? cores_of(rank).serve(ready, seconds)
                                        : ready + seconds;
  }

  // A slice of the backward pass begins.
  void go_back(const Event& event) {
    const size_t bucket = event.item / kSlices;
    if (bucket >= slices_.size()) return end(event.time);
    const double done =
        computed(event.rank, event.time, slices_[bucket] * ranks_[event.rank].speed);
    const size_t next = event.item + 1;
    if (next % kSlices == 0 && !stages_.empty()) {
      for (size_t piece = first_piece_[bucket]; piece < first_piece_[bucket + 1]; ++piece)
        add(done, What::come, event.rank, 0, piece);
    }
    add(done, What::slice, event.rank, 0, next);
  }

  void come(const Event& event) {
    Station& station = ranks_[event.rank].stations[event.stage];
    if (station.busy) {
      station.waiting.push(event.item);
    } else {
      begin(event.time, event.rank, event.stage, event.item);
    }
  }
  void begin(double time, int rank, size_t stage, size_t item) {
    ranks_[rank].stations[stage].busy = true;
    const double seconds = pieces_[item].work * stages_[stage].work;
    const double over = seconds > 0 ? cores_of(rank).serve(time, seconds) : time;
    add(over, What::done, rank, stage, item);
  }
  void done(const Event& event) {
    const Stage& stage = stages_[event.stage];
    stage.collective ? arrive(event, stage) : end(event.time);
    Station& station = ranks_[event.rank].stations[event.stage];
    station.busy = false;
    if (station.waiting.empty()) return;
    const size_t next = station.waiting.front();
    station.waiting.pop();
    begin(event.time, event.rank, event.stage, next);
  }

  Meeting& meeting_of(const Event& event, const Stage& stage) {
    const size_t group = stage.among == Among::all ? 0
                         : stage.among == Among::host
                             ? static_cast<size_t>(host_of(event.rank))
                             : static_cast<size_t>(place_of(event.rank));
    const size_t of_piece = event.item * stages_.size() + event.stage;
    return meetings_[of_piece * groups() + group];
  }

  void arrive(const Event& event, const Stage& stage) {
    Meeting& meeting = meeting_of(event, stage);
    const Piece& piece = pieces_[event.item];
    // In a ring everybody begins with the last one.
    const double sent =
        stage.together ? event.time : send(event.rank, stage, piece, event.time);
    meeting.last = std::max(meeting.last, sent);
    if (++meeting.arrived < size_of(stage.among)) return;
    const std::vector<int> members = members_of(event.rank, stage.among);
    double over = meeting.last;
    if (stage.together) {
      for (int rank : members)
        over = std::max(over, send(rank, stage, piece, meeting.last));
    }
    for (int rank : members)
      add(over + stage.wait, What::come, rank, event.stage + 1, event.item);
  }

  int size_of(Among among) const {
    if (among == Among::all) return cluster_.ranks();
    return among == Among::host ? cluster_.ranks_per_host : cluster_.hosts;
  }
  std::vector<int> members_of(int rank, Among among) const {
    const int here = cluster_.ranks_per_host;
    const int first = among == Among::all    ? 0
                      : among == Among::host ? host_of(rank) * here
                                             : place_of(rank);
    const int step = among == Among::peers ? here : 1;
    const int end = among == Among::host ? first + here : cluster_.ranks();
    std::vector<int> members;
    for (int each = first; each < end; each += step) members.push_back(each);
    return members;
  }

  // What a rank sends of a piece in a stage; gives the end.
  double send(int rank, const Stage& stage, const Piece& piece, double ready) {
    const bool crosses =
        !stage.one_of_host || place_of(rank) == cluster_.ranks_per_host - 1;
    const double outside = crosses ? stage.outside_per_byte * piece.payload : 0;
    const bool in_ring_to_others = stage.one_of_host && outside > 0;
    const double inside = in_ring_to_others ? 0
                                            : stage.inside_per_byte * piece.payload +
                                                  stage.inside_per_value * piece.values;
    found_.wire_bytes += outside + inside;
    found_.host_bytes += outside;
    double over = ready;
    const double rate = cluster_.link_bits / 8 * kGoodput;
    if (rate > 0 && outside > 0)
      over = links_[static_cast<size_t>(host_of(rank))].serve(ready, outside / rate);
    if (cluster_.inside_rate > 0 && inside > 0) {
      over =
          std::max(over, ranks_[rank].inside.serve(ready, inside / cluster_.inside_rate));
    }
    return std::max(over, transport(rank, outside + inside, stage.messages, ready));
  }

  // What a core does for it.
  double transport(int rank, double bytes, double messages, double ready) {
    const double seconds =
        bytes * cluster_.transport_seconds_per_byte + messages * cluster_.message_seconds;
    return seconds > 0 ? cores_of(rank).serve(ready, seconds) : ready;
  }

  void end(double time) { found_.seconds = std::max(found_.seconds, time); }

  void finish() {
    double slowest = 0;
    for (const Rank& rank : ranks_) slowest = std::max(slowest, rank.computed);
    found_.exposed_seconds = found_.seconds - slowest;
    for (const Server& link : links_)
      found_.link_seconds = std::max(found_.link_seconds, link.busy());
    found_.wire_bytes /= cluster_.ranks();
    found_.host_bytes /= cluster_.hosts;
  }

  const Cluster& cluster_;
  std::vector<double> slices_;  // seconds of each, by bucket
  std::vector<size_t> first_piece_;
  std::vector<Piece> pieces_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
  std::vector<Cores> cores_;
  std::vector<Server> links_;
  std::vector<Meeting> meetings_;
  std::priority_queue<Event> waiting_;
  int64_t order_ = 0;
  SimulatedStep found_;
};

}  // namespace

SimulatedStep simulate(const Cluster& cluster, const HookCost& cost,
                       const std::vector<BucketLoad>& buckets) {
  return Play(cluster, cost, buckets).run();
}

}  // namespace brigade::tool
