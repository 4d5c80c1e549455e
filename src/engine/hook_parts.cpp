#include <ATen/ATen.h>

#include <utility>

#include "brigade/compose_hooks.h"
#include "engine/comm/lane.h"

namespace brigade {
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

CountScope::CountScope(Comm& comm, std::string name, int64_t bytes_before)
    : comm_(comm), before_(std::exchange(Comm::Lane::of(comm).part, std::move(name))) {
  Comm::Lane& lane = Comm::Lane::of(comm);
  lane.run.cost.covers(lane.part, bytes_before);
}

CountScope::~CountScope() {
  Comm::Lane& lane = Comm::Lane::of(comm_);
  lane.run.cost.was_under_way(lane.part, began_);
  lane.part = std::move(before_);
}

}  // namespace brigade
