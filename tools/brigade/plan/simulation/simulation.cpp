#include "plan/simulation/simulation.h"

#include <cmath>
#include <queue>
#include <random>

#include "exchange/chunks.h"
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
  int ended = 0;
  // Of a ring, by place in it: rounds that a rank has begun, sent, and got from the one
  // before it.
  struct Hop {
    int begun = 0, sent = 0, got = 0;
  };
  std::vector<Hop> ring;
};

enum class What : std::uint8_t {
  slice,   // of the backward pass begins
  sliced,  // and is over
  come,    // a piece has come to a stage
  done,    // a stage's computing for a piece is over
  sent,    // what a rank sends in a stage, or in a round of a ring, has been sent
  got,     // what the rank before it in a ring has sent has come
  core,    // what a core runs is over, or its turn is
};

struct Action {
  What what = What::slice;
  int rank = 0;         // of core: the pool
  uint32_t stage = 0;   // of the piece; of core: which one
  size_t item = 0;      // the piece, or the slice; of core: the run
  double earliest = 0;  // of sent: what the links took
};

struct Event {
  double time;
  int64_t order;
  Action action;
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
  int turns = kSegmentsAtOnce;
};

class Play {
 public:
  Play(const Cluster& cluster, const HookCost& cost, const std::vector<BucketLoad>& buckets)
      : cluster_(cluster), rate_(cluster.link_bits / 8 * kGoodput) {
    const double burst = rate_ > 0 ? cluster.link_burst / rate_ : 0;
    links_.assign(static_cast<size_t>(cluster.hosts), Server(burst));
    cut(cost, buckets);
    const double typical = pieces_.empty() ? 0 : pieces_.front().payload;
    stages_ = stages_of(cluster, cost, typical);
    for (int pool = 0; pool <= pool_of(cluster.ranks() - 1); ++pool)
      cores_.emplace_back(cluster.cores, cluster.turn);
    make_ranks();
    meetings_.resize(pieces_.size() * stages_.size() * groups());
  }

  SimulatedStep run() {
    for (int rank = 0; rank < cluster_.ranks(); ++rank) {
      const double forward =
          cluster_.compute_seconds * cluster_.forward_share * ranks_[rank].speed;
      compute(0, rank, forward, {What::slice, rank});
    }
    while (!waiting_.empty()) {
      const Event event = waiting_.top();
      waiting_.pop();
      ++found_.events;
      happen(event.time, event.action);
    }
    finish();
    return found_;
  }

 private:
  void cut(const HookCost& cost, const std::vector<BucketLoad>& buckets) {
    const bool by_host = goes_by_host(cost, cluster_.hosts, cluster_.ranks_per_host);
    double all = 0;
    for (const BucketLoad& bucket : buckets) all += bucket.values;
    const double backward = cluster_.compute_seconds * (1 - cluster_.forward_share);
    for (size_t index = 0; index < buckets.size(); ++index) {
      const BucketLoad& load = buckets[index];
      slices_.push_back(all > 0 ? backward * load.values / all / kSlices : 0);
      first_piece_.push_back(pieces_.size());
      const double count = pieces_of(cost, load.values, by_host);
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
  size_t groups() const {
    return static_cast<size_t>(std::max(cluster_.hosts, cluster_.ranks_per_host));
  }

  void add(double time, Action action) { waiting_.push({time, order_++, action}); }

  void happen(double now, const Action& action) {
    switch (action.what) {
      case What::slice:
        return go_back(now, action);
      case What::sliced:
        return bring(now, action);
      case What::come:
        return come(now, action);
      case What::done:
        return done(now, action);
      case What::sent:
        return sent(now, action);
      case What::got:
        return got(now, action);
      case What::core:
        return leave_core(now, action);
    }
  }

  // `then` happens when a core has worked so long for the rank.
  void work(double now, int rank, double seconds, bool for_message, const Action& then) {
    if (seconds <= 0) return add(std::max(now, then.earliest), then);
    found_.cpu_seconds += seconds;
    const int pool = pool_of(rank);
    cores_[static_cast<size_t>(pool)].ask({seconds, then}, for_message);
    start_jobs(now, pool);
  }
  void start_jobs(double now, int pool) {
    Cores<Action>::Start start{};
    while (cores_[static_cast<size_t>(pool)].start(now, start)) {
      add(now + start.seconds, {What::core, pool, static_cast<uint32_t>(start.core),
                                static_cast<size_t>(start.run)});
    }
  }
  void leave_core(double now, const Action& action) {
    Action then;
    auto& cores = cores_[static_cast<size_t>(action.rank)];
    if (cores.over(action.stage, static_cast<int64_t>(action.item), now, then))
      add(std::max(now, then.earliest), then);
    start_jobs(now, action.rank);
  }

  // The model's own computing.
  void compute(double now, int rank, double seconds, const Action& then) {
    ranks_[rank].computed += seconds;
    if (cluster_.compute_takes_cores) return work(now, rank, seconds, false, then);
    add(now + seconds, then);
  }

  void go_back(double now, const Action& action) {
    const size_t bucket = action.item / kSlices;
    if (bucket >= slices_.size()) return end(now);
    compute(now, action.rank, slices_[bucket] * ranks_[action.rank].speed,
            {What::sliced, action.rank, 0, action.item + 1});
  }
  // After its last slice a bucket's pieces come.
  void bring(double now, const Action& action) {
    if (action.item % kSlices == 0 && !stages_.empty()) {
      const size_t bucket = action.item / kSlices - 1;
      for (size_t piece = first_piece_[bucket]; piece < first_piece_[bucket + 1]; ++piece)
        add(now, {What::come, action.rank, 0, piece});
    }
    go_back(now, {What::slice, action.rank, 0, action.item});
  }

  void come(double now, const Action& action) {
    ranks_[action.rank].stations[action.stage].waiting.push(action.item);
    serve(now, action.rank, action.stage);
  }
  // The station takes the next piece, if it can.
  void serve(double now, int rank, uint32_t at) {
    Station& station = ranks_[rank].stations[at];
    const Stage& stage = stages_[at];
    if (station.busy || station.waiting.empty()) return;
    if (stage.takes_turn && ranks_[rank].turns == 0) return;
    station.busy = true;
    const size_t item = station.waiting.front();
    station.waiting.pop();
    if (stage.takes_turn) --ranks_[rank].turns;
    if (stage.gives_turn_back) {
      ++ranks_[rank].turns;
      serve(now, rank, 0);
    }
    work(now, rank, pieces_[item].work * stage.work, false, {What::done, rank, at, item});
  }
  void done(double now, const Action& action) {
    stages_[action.stage].collective ? arrive(now, action) : end(now);
    ranks_[action.rank].stations[action.stage].busy = false;
    serve(now, action.rank, action.stage);
  }

  Meeting& meeting_of(const Action& action) {
    const Among among = stages_[action.stage].among;
    const size_t group = among == Among::all ? 0
                         : among == Among::host
                             ? static_cast<size_t>(host_of(action.rank))
                             : static_cast<size_t>(place_of(action.rank));
    const size_t of_piece = action.item * stages_.size() + action.stage;
    return meetings_[of_piece * groups() + group];
  }

  void arrive(double now, const Action& action) {
    const Stage& stage = stages_[action.stage];
    if (!stage.together) return send(now, action);
    // In a ring everybody begins with the last one.
    Meeting& meeting = meeting_of(action);
    if (++meeting.arrived < size_of(stage.among)) return;
    meeting.ring.resize(static_cast<size_t>(meeting.arrived));
    for (int rank : members_of(action.rank, stage.among))
      begin_round(now, {What::sent, rank, action.stage, action.item});
  }

  // A round needs what the one before it has brought. REQUIRES: a ring is among all.
  void begin_round(double now, const Action& action) {
    Meeting::Hop& hop = meeting_of(action).ring[static_cast<size_t>(action.rank)];
    const bool ready = hop.sent == hop.begun && hop.got >= hop.begun;
    if (!ready || hop.begun == stages_[action.stage].rounds) return;
    ++hop.begun;
    send(now, action);
  }
  void sent(double now, const Action& action) {
    const Stage& stage = stages_[action.stage];
    Meeting& meeting = meeting_of(action);
    if (!stage.together) return leave(now, action, meeting);
    ++meeting.ring[static_cast<size_t>(action.rank)].sent;
    const int next = (action.rank + 1) % cluster_.ranks();
    add(now + stage.wait, {What::got, next, action.stage, action.item});
    begin_round(now, action);
  }
  void got(double now, const Action& action) {
    Meeting& meeting = meeting_of(action);
    Meeting::Hop& hop = meeting.ring[static_cast<size_t>(action.rank)];
    if (++hop.got == stages_[action.stage].rounds) return leave(now, action, meeting);
    begin_round(now, {What::sent, action.rank, action.stage, action.item});
  }
  // With the last one everybody goes on.
  void leave(double now, const Action& action, Meeting& meeting) {
    const Stage& stage = stages_[action.stage];
    if (++meeting.ended < size_of(stage.among)) return;
    const double over = now + (stage.together ? 0 : stage.wait);
    for (int rank : members_of(action.rank, stage.among))
      add(over, {What::come, rank, action.stage + 1, action.item});
    meeting.ring = {};
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

  // What a rank sends of a piece in a stage, or in a round of it.
  void send(double now, const Action& action) {
    const Stage& stage = stages_[action.stage];
    const Piece& piece = pieces_[action.item];
    const int rank = action.rank;
    const bool crosses =
        !stage.one_of_host || place_of(rank) == cluster_.ranks_per_host - 1;
    const double outside = crosses ? stage.outside_per_byte * piece.payload : 0;
    const bool in_ring_to_others = stage.one_of_host && outside > 0;
    const double inside = in_ring_to_others ? 0
                                            : stage.inside_per_byte * piece.payload +
                                                  stage.inside_per_value * piece.values;
    found_.wire_bytes += outside + inside;
    found_.host_bytes += outside;
    double over = now;
    if (rate_ > 0 && outside > 0)
      over = links_[static_cast<size_t>(host_of(rank))].serve(now, outside / rate_);
    if (cluster_.inside_rate > 0 && inside > 0)
      over = std::max(over, ranks_[rank].inside.serve(now, inside / cluster_.inside_rate));
    const double seconds = outside * cluster_.link_seconds_per_byte +
                           inside * cluster_.transport_seconds_per_byte +
                           stage.message_seconds;
    work(now, rank, seconds, true, {What::sent, rank, action.stage, action.item, over});
  }

  void end(double time) { found_.seconds = std::max(found_.seconds, time); }

  void finish() {
    double slowest = 0;
    for (const Rank& rank : ranks_) slowest = std::max(slowest, rank.computed);
    found_.exposed_seconds = found_.seconds - slowest;
    for (const Server& link : links_)
      found_.link_seconds = std::max(found_.link_seconds, link.busy());
    found_.cpu_seconds /= cluster_.ranks();
    found_.wire_bytes /= cluster_.ranks();
    found_.host_bytes /= cluster_.hosts;
  }

  const Cluster& cluster_;
  const double rate_;           // of a link, bytes a second
  std::vector<double> slices_;  // seconds of each, by bucket
  std::vector<size_t> first_piece_;
  std::vector<Piece> pieces_;
  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
  std::vector<Cores<Action>> cores_;
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
