// Everybody's parameters to everybody, when an optimizer steps after the backward pass.
#pragma once
#include <array>
#include <vector>

#include "brigade/process_group.h"
#include "zero/flat.h"

namespace brigade::optim {

// Parameters in flats, and how they are sent.
class FlatSender {
 public:
  explicit FlatSender(ProcessGroup group) : group_(std::move(group)) {}

  // `views`: the parameters become views into one tensor for each flat.
  void lay_out(const std::vector<at::Tensor>& parameters, const std::vector<int>& owners,
               bool views);
  // False: lay_out is to be called, for the first time or because parameters have other
  // memory now.
  bool laid_out() const;
  void forget() { flats_.clear(), buffers_.clear(); }

  // Collective. Everyone gets the owners' values.
  void send();

 private:
  struct Sending;
  bool mine(const Flat& flat) const { return flat.owner == group_.rank(); }
  // Whether a flat needs no copy to be sent.
  bool as_it_is(const Flat& flat) const { return flat.in_place || !buffers_.empty(); }
  bool directly(const Flat& flat) const;
  c10d::ProcessGroup& way(int from, int to) const { return *direct_[from < to].c10d(); }
  void start(size_t index, Sending& sending);

  const ProcessGroup group_;
  // For messages from one rank to another, made when they are needed: up and down. Gloo
  // reads and writes a connection by turns, not at once.
  std::array<ProcessGroup, 2> direct_;
  std::vector<Flat> flats_;
  std::vector<at::Tensor> buffers_;  // with views, one each
};

}  // namespace brigade::optim
