// Treats the whole bucket as one matrix that is nearly square: M ≈ P Qᵀ. The last row may
// be short, and counts as filled up with zeros.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "codec/low_rank.h"
#include "hooks/error_memory.h"
#include "hooks/low_rank/power_sgd_core.h"
#include "hooks/stream_use.h"

namespace brigade {
namespace {

// The state kept of one bucket; see power_sgd.cpp.
struct Square {
  at::Tensor q;
  at::Tensor spare;
};

// The bucket's values, or their sum with the errors, as a matrix without filling: its whole
// rows where they are, and the *tail*, the start of one more row.
struct Cut {
  Cut(const at::Tensor& flat, int64_t side)
      : rows(flat.narrow(0, 0, flat.numel() / side * side).view({1, -1, side})),
        tail(flat.narrow(0, rows.numel(), flat.numel() - rows.numel())) {}
  at::Tensor rows;  // (1, rows, side)
  at::Tensor tail;  // (less than side)

  // The part of P for the whole rows; last() is the tail's, (1, r).
  at::Tensor whole(const at::Tensor& p) const { return p.narrow(1, 0, rows.size(1)); }
  at::Tensor last(const at::Tensor& p) const { return p[0].narrow(0, rows.size(1), 1); }
  // The part of Q that the tail is multiplied with, (tail, r).
  at::Tensor met(const at::Tensor& q) const { return q[0].narrow(0, 0, tail.numel()); }
};

// The width of the bucket's largest layer; 0 if no layer has two dimensions.
int64_t width_of(const Bucket& bucket) {
  int64_t largest = 0, width = 0;
  for (size_t place = 0; place < bucket.parameters().size(); ++place) {
    const at::Tensor& parameter = bucket.parameters()[place];
    if (parameter.dim() < 2 || bucket.length(place) <= largest) continue;
    largest = bucket.length(place);
    width = largest / parameter.size(0);
  }
  return width;
}

class BatchedPowerSGD : public PowerSGDBase {
 public:
  explicit BatchedPowerSGD(PowerSGDOptions options)
      : PowerSGDBase("batched_powersgd", options) {}

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override;

  HookState state() const override {
    HookState state;
    save_base(state);
    errors_.save(state);
    for (const auto& [name, square] : squares_) {
      state.tensors["q." + name] = square.q.clone();
      state.tensors["spare." + name] = square.spare.clone();
    }
    return state;
  }
  void load_state(const HookState& state) override {
    load_base(state);
    errors_.load(state);
    squares_.clear();
    for (const auto& [key, tensor] : state.tensors) {
      if (key.rfind("q.", 0) == 0) squares_[key.substr(2)].q = tensor.clone();
      if (key.rfind("spare.", 0) == 0) squares_[key.substr(6)].spare = tensor.clone();
    }
  }
  void reset() override {
    reset_base();
    errors_ = {};
    squares_.clear();
  }
  bool commit() override {
    commit_base();
    errors_.commit();
    committed_squares_ = copied(squares_);
    return true;
  }
  void revert() override {
    take_back_base();
    errors_.revert();
    squares_ = copied(committed_squares_);
  }

 private:
  void project(const Cut& values, const Residuals& error, const at::Tensor& q,
               const at::Tensor& p) const;
  void project_back(const Cut& sum, const at::Tensor& p, const at::Tensor& q) const;
  void rebuild_rows(const Cut& to, const at::Tensor& error, const at::Tensor& p,
                    const at::Tensor& q) const;
  void rebuild(at::Tensor values, const at::Tensor& error, const at::Tensor& p,
               const at::Tensor& q) const;
  at::Tensor start_of(const Bucket& bucket, int64_t side, int64_t rank,
                      const at::TensorOptions& options, at::Tensor& memory);

  ErrorMemory errors_;
  using Squares = std::map<std::string, Square>;  // by the bucket's first parameter
  static Squares copied(Squares squares) {
    for (auto& [name, square] : squares) square.q = square.q.clone();  // the spare is fixed
    return squares;
  }
  Squares squares_;
  Squares committed_squares_;
};

// Computes P = (M + error) Q; the error becomes that sum.
void BatchedPowerSGD::project(const Cut& values, const Residuals& error,
                              const at::Tensor& q, const at::Tensor& p) const {
  at::Tensor whole = values.whole(p);
  std::optional<Cut> last, sum;
  if (error.defined())
    last.emplace(error.last, q.size(1)), sum.emplace(error.next, q.size(1));
  const Cut& from = sum ? *sum : values;
  if (low_rank::has_kernels(values.rows, q.size(2))) {
    low_rank::Residual residual;
    if (sum) residual.sum = sum->rows[0];
    if (sum && !error.in_place()) residual.last = last->rows[0];
    low_rank::project({{values.rows[0], whole[0], q[0], sum ? &residual : nullptr}});
  } else {
    if (sum) at::add_out(sum->rows, last->rows, values.rows);
    whole.copy_(at::bmm(from.rows.to(p.scalar_type()), q));
  }
  if (sum) at::add_out(sum->tail, last->tail, values.tail);
  if (from.tail.numel() > 0) {
    const at::Tensor tail = from.tail.to(p.scalar_type()).unsqueeze(0);
    from.last(p).copy_(at::mm(tail, from.met(q)));
  }
}

// Computes Q = sumᵀ P.
void BatchedPowerSGD::project_back(const Cut& sum, const at::Tensor& p,
                                   const at::Tensor& q) const {
  const bool floats = p.scalar_type() == at::kFloat;  // errors are always float
  if (floats && low_rank::has_kernels(sum.rows, p.size(2))) {
    low_rank::project_back({{sum.rows[0], sum.whole(p)[0], q[0]}});
  } else {
    at::Tensor(q).copy_(
        at::bmm(sum.rows.to(p.scalar_type()).transpose(1, 2), sum.whole(p)));
  }
  if (sum.tail.numel() > 0)
    sum.met(q).add_(at::mm(sum.tail.to(p.scalar_type()).unsqueeze(1), sum.last(p)));
}

// Rebuilds the whole rows of P Qᵀ. Subtracts them from `error`, if that is defined, while
// they are still in a cache.
void BatchedPowerSGD::rebuild_rows(const Cut& to, const at::Tensor& error,
                                   const at::Tensor& p, const at::Tensor& q) const {
  constexpr int64_t kAtOnce = 1 << 17;  // values
  const int64_t side = q.size(1), rows = to.rows.size(1);
  const int64_t step = std::max<int64_t>(1, kAtOnce / side);
  const at::Tensor left = error.defined() ? Cut(error, side).rows : at::Tensor();
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const at::Tensor some = to.rows.narrow(1, row, count);
    low_rank::rebuild(some[0], p[0].narrow(0, row, count), q[0]);
    if (left.defined()) left.narrow(1, row, count).sub_(some);
  }
}

// Computes values = P Qᵀ; what the product lacks stays in `error`. If q is not finite (on
// all ranks alike), neither are the values, and the error gets its previous value back.
void BatchedPowerSGD::rebuild(at::Tensor values, const at::Tensor& error,
                              const at::Tensor& p, const at::Tensor& q) const {
  const Cut cut(values, q.size(1));
  const at::Tensor finite = at::isfinite(q.sum());
  // On a device the host must not wait to learn whether q is finite.
  const bool kernels = values.is_cpu() && low_rank::has_kernels(cut.rows, q.size(2));
  if (kernels && error.defined() && !finite.item<bool>())
    at::Tensor(error).sub_(values).nan_to_num_(0, 0, 0);
  at::Tensor result = kernels ? values : at::empty_like(values);
  const Cut to(result, q.size(1));
  if (kernels) {
    const bool feeds_back = error.defined() && finite.item<bool>();
    rebuild_rows(to, feeds_back ? error : at::Tensor(), p, q);
  } else {
    at::Tensor(to.rows).copy_(at::bmm(to.whole(p), q.transpose(1, 2)));
  }
  if (to.tail.numel() > 0)
    at::Tensor(to.tail).copy_(at::mm(to.last(p), to.met(q).t()).view({-1}));
  if (kernels) {
    if (error.defined() && finite.item<bool>())
      at::Tensor(Cut(error, q.size(1)).tail).sub_(to.tail);
    return;
  }
  if (error.defined()) {
    // The kernels added nothing where a value is not finite.
    const at::Tensor added = values.nan_to_num(0, 0, 0);
    at::Tensor(error).sub_(at::where(finite, result, added)).nan_to_num_(0, 0, 0);
  }
  values.copy_(result);
}

// Returns the start value of P's computation. Uses the map before the first co_await only.
at::Tensor BatchedPowerSGD::start_of(const Bucket& bucket, int64_t side, int64_t rank,
                                     const at::TensorOptions& options, at::Tensor& memory) {
  Square& square = squares_[bucket.names().front()];
  use_here(square.q, options.device());
  use_here(square.spare, options.device());
  const bool warm = options_.warm_start && square.spare.defined() &&
                    square.spare.size(1) == side && square.spare.size(2) == rank;
  if (!warm) {
    square.spare = next_start({1, side, rank}, options);
    square.q = square.spare.clone();
  }
  memory = square.q;
  at::Tensor q = revive(square.q, square.spare);
  orthogonalize(q, options_.orthogonalization_epsilon);
  return q;
}

Task<at::Tensor> BatchedPowerSGD::reduce(Bucket bucket, Comm& comm) {
  if (!compresses(bucket)) {
    co_return co_await average(bucket, comm);
  }
  at::Tensor buffer = bucket.buffer();
  const int64_t n = buffer.numel();
  if (n == 0) co_return buffer;
  const int64_t side = nearly_square_columns(n, width_of(bucket));
  const int64_t rows = (n + side - 1) / side;
  const int64_t rank = std::min({rows, side, options_.matrix_approximation_rank});
  const auto options = buffer.options().dtype(compute_dtype(buffer.scalar_type()));
  count(bucket, n, (rows + side) * rank);

  at::Tensor values = buffer.to(options), memory;
  const Residuals feedback = options_.use_error_feedback ? errors_.of(bucket) : Residuals();
  const at::Tensor error = feedback.next;
  at::Tensor q = start_of(bucket, side, rank, options, memory);
  at::Tensor p = at::empty({1, rows, rank}, options);
  project(Cut(values, side), feedback, q, p);
  p.div_(comm.size());
  co_await comm.all_reduce(p);
  orthogonalize(p, options_.orthogonalization_epsilon);
  q = at::empty({1, side, rank}, options);
  project_back(Cut(error.defined() ? error : values, side), p, q);
  q.div_(comm.size());
  co_await comm.all_reduce(q);

  memory.copy_(keep(at::isfinite(q.sum()), q, memory));
  rebuild(values, error, p, q);
  co_return values.is_same(buffer) ? buffer : buffer.copy_(values);
}

}  // namespace

int64_t nearly_square_columns(int64_t values, int64_t width) {
  const auto factors = [values](int64_t columns) {
    return (values + columns - 1) / columns + columns;
  };
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(values))));
  if (width == 0) return side;
  int64_t best = side, least = factors(side) + factors(side) * 3 / 100 + 1;
  const auto offer = [&](int64_t columns) {
    if (factors(columns) >= least) return;
    best = columns;
    least = factors(columns);
  };
  if (width <= side) {
    offer(side / width * width);
    offer((side / width + 1) * width);
  } else {
    for (int64_t parts = 1; parts <= width / side + 1; ++parts)
      if (width % parts == 0) offer(width / parts);
  }
  return best;
}

std::shared_ptr<PowerSGDHook> make_batched_power_sgd(PowerSGDOptions options) {
  return std::make_shared<BatchedPowerSGD>(options);
}

}  // namespace brigade
