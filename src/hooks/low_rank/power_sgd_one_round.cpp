// Takes one round a step. The *basis* is what the last step sent, Q or P, made orthonormal;
// all ranks have the same. The other factor is computed with it and sent beside the
// leftovers, and becomes the next step's basis. So P and Q take turns, and two steps do
// what one step with two rounds does, with a matrix that changes in between.
//
// Small buckets that follow each other travel *together*, in one message. The first of them
// *leads*: it waits at the second station until the last one has passed the first, sends
// all of them, and takes the sum to the third station. The others go there at once, and
// follow it.
#include <ATen/ATen.h>

#include <atomic>

#include "brigade/compose_hooks.h"
#include "codec/low_rank.h"
#include "exchange/equal_messages.h"
#include "hooks/low_rank/power_sgd_matrices.h"

namespace brigade {
namespace {

// A group's part in one step.
struct Round {
  MatrixGroup* group;
  bool sends_q;    // P is the basis
  at::Tensor own;  // this rank's share of what is sent
  low_rank::Matrices matrices;
  const at::Tensor& sent() const { return sends_q ? group->q : group->p; }
};

// Buckets together send up to this many values. At 1 Gbit/s they take as long as a small
// message, 0.13 ms.
constexpr int64_t kTogether = 4096;

// With two ranks and at most this many values, one exchange replaces the all-reduce: the
// same bytes, half the latency.
constexpr int64_t kAtOnce = int64_t{1} << 16;

Task<void> sum_over_ranks(at::Tensor flat, Comm& comm) {
  const bool at_once =
      comm.size() == 2 && flat.numel() <= kAtOnce && flat.is_cpu() && !comm.runs_inline();
  if (at_once) {
    co_await add_up_of_two(flat, comm);
  } else {
    co_await comm.all_reduce(flat);
  }
}

// The buckets that travel together.
struct Shipment {
  std::vector<at::Tensor> parts;  // by bucket
  int64_t values = 0;
  Latch closed{1};
};

class OneRoundPowerSGD : public PowerSGDMatrices {
 public:
  using PowerSGDMatrices::PowerSGDMatrices;
  void begin_pass(const HookPass& pass) override;
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;
  // Includes the counts of buckets: a resumed run must sum in the same order.
  HookState state() const override;
  void load_state(const HookState& state) override;
  bool commit() override {
    committed_buckets_ = {seen_, before_, seen_late_};
    return PowerSGDMatrices::commit();
  }
  void revert() override {
    PowerSGDMatrices::revert();
    seen_ = committed_buckets_.seen;
    before_ = committed_buckets_.before;
    seen_late_ = committed_buckets_.late;
  }

 private:
  // Sums over the ranks, in place. REQUIRES: called in the bucket's first stage.
  Task<void> add_up(at::Tensor flat, bool is_last, Comm& comm);
  void close_shipment();
  Round begin(MatrixGroup& group);
  at::Tensor start_of(MatrixMemory& memory, bool sends_q, const MatrixGroup& group);
  void project(Round& round, const at::Tensor& to);
  void rebuild(Round& round);
  void rebuild_by_kernels(Round& round);
  void rebuild_by_aten(Round& round);

  std::shared_ptr<Shipment> open_;  // the next bucket may join it
  // Whether buckets may wait for later ones in this pass. They may only if the last one is
  // sure to come, and if all come here before their first collective: a later one would
  // never be served at the station where another waits for it. Two passes with the same
  // buckets must have shown both.
  bool together_ = false;
  int64_t before_ = 0;             // buckets of the pass before
  std::atomic<int64_t> seen_ = 0;  // buckets of this one
  std::atomic<bool> seen_late_ = false;
  struct Buckets {
    int64_t seen = 0, before = 0;
    bool late = false;
  } committed_buckets_;
};

void OneRoundPowerSGD::begin_pass(const HookPass& pass) {
  open_.reset();  // left by a pass that failed
  const bool same = seen_ > 0 && seen_ == before_;
  together_ = same && !seen_late_ && !pass.may_be_unused;
  before_ = seen_.exchange(0);
}

HookState OneRoundPowerSGD::state() const {
  HookState state = PowerSGDMatrices::state();
  if (seen_late_) return state;
  state.values["buckets"] = std::to_string(seen_);
  state.values["buckets_before"] = std::to_string(before_);
  return state;
}

void OneRoundPowerSGD::load_state(const HookState& state) {
  PowerSGDMatrices::load_state(state);
  const auto number = [&state](const char* key) {
    const auto found = state.values.find(key);
    return found == state.values.end() ? int64_t{0} : std::stoll(found->second);
  };
  seen_ = number("buckets");
  before_ = number("buckets_before");
}

void OneRoundPowerSGD::close_shipment() {
  if (const auto shipment = std::exchange(open_, nullptr)) shipment->closed.count_down();
}

Task<void> OneRoundPowerSGD::add_up(at::Tensor flat, bool is_last, Comm& comm) {
  const bool joins = together_ && !comm.runs_inline() && flat.is_cpu() &&
                     flat.numel() < kTogether && comm.collectives_so_far() == 0;
  if (open_ && (!joins || open_->parts.front().dtype() != flat.dtype())) close_shipment();
  const bool leads = !open_;
  const bool enough = is_last || (open_ && open_->values + flat.numel() >= kTogether);
  if (!joins || (leads && enough)) {
    co_await sum_over_ranks(flat, comm);
    co_return;
  }
  if (leads) open_ = std::make_shared<Shipment>();
  const std::shared_ptr<Shipment> shipment = open_;
  shipment->parts.push_back(flat);
  shipment->values += flat.numel();
  if (enough) close_shipment();
  if (!leads) {
    co_await comm.skip(2);
    co_return;
  }
  co_await comm.skip();
  co_await shipment->closed.wait(comm);
  at::Tensor all = at::cat(shipment->parts);
  co_await sum_over_ranks(all, comm);
  int64_t begin = 0;
  for (at::Tensor& part : shipment->parts) {
    part.copy_(all.narrow(0, begin, part.numel()));
    begin += part.numel();
  }
}

at::Tensor OneRoundPowerSGD::start_of(MatrixMemory& memory, bool sends_q,
                                      const MatrixGroup& group) {
  at::Tensor& spare = sends_q ? memory.spare_p : memory.spare;
  if (!options_.warm_start || !spare.defined()) {
    const int64_t length = sends_q ? group.rows() : group.columns();
    spare = next_start({length, rank_of(group.rows(), group.columns())}, group.m.options());
  }
  const at::Tensor& last = sends_q ? memory.p : memory.q;
  return last.defined() ? revive(last, spare) : spare;
}

Round OneRoundPowerSGD::begin(MatrixGroup& group) {
  Round round{&group, group.memories.front()->p.defined(), {}, {}};
  std::vector<at::Tensor> starts;
  for (MatrixMemory* memory : group.memories)
    starts.push_back(start_of(*memory, round.sends_q, group));
  at::Tensor basis = at::stack(starts);
  orthogonalize(basis, options_.orthogonalization_epsilon);
  (round.sends_q ? group.p : group.q) = basis;
  return round;
}

void OneRoundPowerSGD::project(Round& round, const at::Tensor& to) {
  MatrixGroup& group = *round.group;
  (round.sends_q ? group.q : group.p) = to;
  if (group.kernels) {
    round.matrices = matrices_of(group);
    if (round.sends_q) {
      low_rank::add(round.matrices);
      low_rank::project_back(round.matrices);
    } else {
      low_rank::project(round.matrices);
    }
  } else {
    add_errors(group);
    if (round.sends_q) {
      at::bmm_out(group.q, group.m.transpose(1, 2), group.p);
    } else {
      at::bmm_out(group.p, group.m, group.q);
    }
  }
  if (options_.use_error_feedback) round.own = to.clone();
}

// The error is the loss of this rank's own share. What was sent is the mean of the shares,
// so the mean of the errors is what the result lacks.
void OneRoundPowerSGD::rebuild_by_kernels(Round& round) {
  std::vector<low_rank::Ending> endings;
  for (size_t index = 0; index < round.matrices.size(); ++index) {
    const auto place = static_cast<int64_t>(index);
    low_rank::Ending& ending = endings.emplace_back();
    ending.check = round.sent()[place];
    ending.p = round.matrices[index].p;
    ending.q = round.matrices[index].q;
    if (round.own.defined()) (round.sends_q ? ending.q : ending.p) = round.own[place];
  }
  low_rank::finish(round.matrices, endings);
}

void OneRoundPowerSGD::rebuild_by_aten(Round& round) {
  MatrixGroup& group = *round.group;
  for (int64_t place = 0; options_.use_error_feedback && place < group.batch(); ++place) {
    low_rank::Residual& error = group.memories[static_cast<size_t>(place)]->error;
    const at::Tensor p = round.sends_q ? group.p[place] : round.own[place];
    const at::Tensor q = round.sends_q ? round.own[place] : group.q[place];
    const at::Tensor finite = at::isfinite(round.sent()[place].sum());
    error = {keep(finite, group.m[place] - at::mm(p, q.t()), error.sum), {}, {}};
  }
  at::bmm_out(group.m, group.p, group.q.transpose(1, 2));
}

void OneRoundPowerSGD::rebuild(Round& round) {
  MatrixGroup& group = *round.group;
  group.kernels ? rebuild_by_kernels(round) : rebuild_by_aten(round);
  for (int64_t place = 0; options_.warm_start && place < group.batch(); ++place) {
    MatrixMemory& memory = *group.memories[static_cast<size_t>(place)];
    const at::Tensor sent = round.sent()[place];
    // The spare replaces zeros.
    const at::Tensor next = at::where(at::isfinite(sent.sum()), sent, at::zeros_like(sent));
    memory.q = round.sends_q ? next : at::Tensor();
    memory.p = round.sends_q ? at::Tensor() : next;
  }
  write_back(group);
}

Task<at::Tensor> OneRoundPowerSGD::reduce(Bucket bucket, Comm& comm) {
  ++seen_;
  if (comm.collectives_so_far() > 0) seen_late_ = true;
  if (!compresses(bucket)) {
    co_return co_await average(bucket, comm);
  }
  Plan plan = this->plan(bucket);
  std::vector<Round> rounds;
  std::vector<std::vector<int64_t>> shapes;
  for (MatrixGroup& group : plan.groups) {
    rounds.push_back(begin(group));
    shapes.push_back({group.batch(), rounds.back().sends_q ? group.columns() : group.rows(),
                      rank_of(group.rows(), group.columns())});
  }
  for (const at::Tensor& leftover : plan.leftovers) shapes.push_back({leftover.numel()});
  const Packed packed =
      pack(shapes,
           bucket.buffer().options().dtype(compute_dtype(bucket.buffer().scalar_type())));
  count(bucket, bucket.buffer().numel(), packed.flat.numel());

  // Runs from the end, which the backward pass wrote last.
  for (size_t index = rounds.size(); index-- > 0;)
    project(rounds[index], packed.views[index]);
  for (size_t index = 0; index < plan.leftovers.size(); ++index)
    packed.views[rounds.size() + index].copy_(plan.leftovers[index].flatten());
  packed.flat.div_(comm.size());
  co_await add_up(packed.flat, bucket.is_last(), comm);

  for (Round& round : rounds) rebuild(round);
  for (size_t index = 0; index < plan.leftovers.size(); ++index) {
    const at::Tensor& mean = packed.views[rounds.size() + index];
    plan.leftovers[index].copy_(mean.view(plan.leftovers[index].sizes()));
  }
  co_return bucket.buffer();
}

}  // namespace

std::shared_ptr<PowerSGDHook> make_one_round_power_sgd(PowerSGDOptions options) {
  return std::make_shared<OneRoundPowerSGD>(options);
}

}  // namespace brigade
