#include "brigade/compose_hooks.h"

#include <ATen/ATen.h>

#include <bit>
#include <utility>

#include "engine/comm/lane.h"

namespace brigade {

HookWrapper::HookWrapper(std::shared_ptr<Hook> inner) : inner_(std::move(inner)) {
  if (!inner_) {
    throw ConfigError(
        "a hook around another got none; make_hook(\"allreduce\") is the plain one");
  }
}

std::string HookWrapper::fingerprint() const {
  return name() + " around " + inner_->fingerprint();
}
void HookWrapper::set_parameters(std::span<const std::string> names) {
  inner_->set_parameters(names);
}
void HookWrapper::begin_pass(const HookPass& pass) { inner_->begin_pass(pass); }
bool HookWrapper::takes_sparse() const { return inner_->takes_sparse(); }
HookState HookWrapper::state() const { return inner_->state(); }
void HookWrapper::load_state(const HookState& state) { inner_->load_state(state); }
void HookWrapper::reset() { inner_->reset(); }
void HookWrapper::check_dtype(at::ScalarType dtype) const { inner_->check_dtype(dtype); }
std::vector<std::string> HookWrapper::history() const { return inner_->history(); }

Task<at::Tensor> HookWrapper::reduce_inner(Bucket bucket, Comm& comm) const {
  if (bucket.buffer().is_sparse() && !inner_->takes_sparse()) {
    return average(std::move(bucket), comm);
  }
  return inner_->reduce(std::move(bucket), comm);
}

Task<HookWrapper::Undivided> HookWrapper::reduce_inner_undivided(Bucket bucket,
                                                                 Comm& comm) const {
  Undivided reduced;
  reduced.result = bucket.buffer();
  const auto ranks = static_cast<unsigned>(comm.size());
  const bool wide = reduced.result.scalar_type() == at::kFloat ||
                    reduced.result.scalar_type() == at::kDouble;
  if (ranks > 1 && std::has_single_bit(ranks) && wide && reduced.result.is_cpu() &&
      !reduced.result.is_sparse() && inner_->is_plain_mean()) {
    co_await comm.all_reduce(reduced.result);
    reduced.scale = 1.0 / ranks;
  } else {
    reduced.result = co_await reduce_inner(bucket, comm);
  }
  co_return reduced;
}

namespace {

class InDtype : public HookWrapper, public RevertibleHook {
 public:
  InDtype(at::ScalarType dtype, std::shared_ptr<Hook> inner, std::string before,
          std::string after)
      : HookWrapper(std::move(inner)),
        dtype_(dtype),
        before_(std::move(before)),
        after_(std::move(after)) {}

  std::string name() const override { return before_ + inner().name() + after_; }
  std::string fingerprint() const override {
    return before_ + inner().fingerprint() + after_;
  }
  void check_dtype(at::ScalarType dtype) const override {
    inner().check_dtype(at::isFloatingType(dtype) ? dtype_ : dtype);
  }

  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor buffer = bucket.buffer();
    const at::ScalarType own = buffer.scalar_type();
    if (buffer.is_sparse() || own == dtype_ || !at::isFloatingType(own)) {
      co_return co_await reduce_inner(bucket, comm);
    }
    bucket.set_buffer(buffer.to(dtype_));
    at::Tensor result = co_await reduce_inner(bucket, comm);
    co_return buffer.copy_(result);
  }
  bool commit() override { return commit_hook(inner()); }
  void revert() override { revert_hook(inner()); }

 private:
  const at::ScalarType dtype_;
  const std::string before_;
  const std::string after_;
};

}  // namespace

std::shared_ptr<Hook> in_dtype(at::ScalarType dtype, std::shared_ptr<Hook> inner,
                               std::string before, std::string after) {
  return std::make_shared<InDtype>(dtype, std::move(inner), std::move(before),
                                   std::move(after));
}

namespace {

// Where the gradients of `places` begin in whole's buffer, if they lie side by side.
int64_t begin_of(const Bucket& whole, const std::vector<size_t>& places) {
  int64_t begin = 0;
  for (size_t place = 0; place < places.front(); ++place) begin += whole.length(place);
  return begin;
}

void check_places(const Bucket& whole, const std::vector<size_t>& places) {
  TORCH_CHECK(!whole.buffer().is_sparse(), "BucketPart: the bucket is sparse");
  TORCH_CHECK(!places.empty(), "BucketPart: there are no places");
  for (size_t index = 0; index < places.size(); ++index) {
    TORCH_CHECK(places[index] < whole.names().size() &&
                    (index == 0 || places[index - 1] < places[index]),
                "BucketPart: place ", places[index], " of a bucket with ",
                whole.names().size(), " parameters; expected ascending places");
  }
}

at::Tensor gather(const std::vector<at::Tensor>& gradients, at::Tensor memory,
                  int64_t elements) {
  if (!memory.defined()) memory = at::empty({elements}, gradients.front().options());
  int64_t begin = 0;
  for (const at::Tensor& gradient : gradients) {
    memory.narrow(0, begin, gradient.numel()).copy_(gradient.flatten());
    begin += gradient.numel();
  }
  return memory;
}

Bucket part_of(const Bucket& whole, const std::vector<size_t>& places, at::Tensor buffer) {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const size_t place : places) {
    parameters.push_back(whole.parameters()[place]);
    names.push_back(whole.names()[place]);
  }
  return Bucket(std::move(buffer), std::move(parameters), std::move(names), whole.index(),
                whole.is_last());
}

}  // namespace

bool BucketPart::is_view(const std::vector<size_t>& places) {
  return places.back() - places.front() + 1 == places.size();
}

int64_t BucketPart::elements(const Bucket& whole, const std::vector<size_t>& places) {
  int64_t elements = 0;
  for (const size_t place : places) elements += whole.length(place);
  return elements;
}

BucketPart::BucketPart(Bucket whole, const std::vector<size_t>& places, at::Tensor memory)
    : part_(whole) {
  check_places(whole, places);
  const int64_t length = elements(whole, places);
  if (is_view(places)) {
    in_whole_ = whole.buffer().narrow(0, begin_of(whole, places), length);
    part_ = part_of(whole, places, in_whole_);
    return;
  }
  const std::vector<at::Tensor> all = whole.gradients();
  for (const size_t place : places) gradients_.push_back(all[place]);
  part_ = part_of(whole, places, gather(gradients_, std::move(memory), length));
}

void BucketPart::put_back(const at::Tensor& result) {
  TORCH_CHECK(result.dim() == 1 && result.numel() == part_.buffer().numel(),
              "BucketPart: the result has the shape ", result.sizes(),
              ", but the part has ", part_.buffer().numel(), " elements");
  if (in_whole_.defined()) {
    if (result.const_data_ptr() != in_whole_.const_data_ptr()) in_whole_.copy_(result);
    return;
  }
  int64_t begin = 0;
  for (const at::Tensor& gradient : gradients_) {
    const int64_t length = gradient.numel();
    at::Tensor(gradient).copy_(result.narrow(0, begin, length).view(gradient.sizes()));
    begin += length;
  }
}

void BucketSequence::pass(const Bucket& whole) {
  whole_is_last_ = whole.is_last();
  if (whole.index() != 0) return;
  if (!told_) expected_ = parameters_;
  parameters_ = buckets_ = 0;
}

Bucket BucketSequence::next(const Bucket& seen) {
  parameters_ += static_cast<int64_t>(seen.names().size());
  const bool last = expected_ > 0 ? parameters_ == expected_ : whole_is_last_;
  return seen.at_place(buckets_++, last);
}

TrafficLabel::TrafficLabel(Comm& comm, std::string name, int64_t bytes_before)
    : comm_(comm), before_(std::exchange(Comm::Lane::of(comm).label, std::move(name))) {
  Comm::Lane& lane = Comm::Lane::of(comm);
  lane.run.cost.covers(lane.label, bytes_before);
}

TrafficLabel::~TrafficLabel() {
  Comm::Lane& lane = Comm::Lane::of(comm_);
  lane.run.cost.was_under_way(lane.label, began_);
  lane.label = std::move(before_);
}

}  // namespace brigade
