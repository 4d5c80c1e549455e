#include "zero/flat.h"

#include <ATen/ATen.h>

#include <map>
#include <tuple>

namespace brigade::optim {
namespace {

at::Tensor like(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) {
    return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
  }
  return flat.as_strided(parameter.sizes(), parameter.strides(),
                         flat.storage_offset() + offset);
}

Task<void> share_flat(const Flat& flat, Comm& comm, const MakeFlat& make) {
  make(flat);
  at::Tensor message = flat.message();
  const bool mine = flat.owner == comm.rank();
  if (mine) flat.read(message);
  co_await comm.broadcast(message, flat.owner);
  if (!mine) flat.write(message);
}

}  // namespace

at::Tensor flat_view(const at::Tensor& parameter) {
  return parameter.detach().as_strided({parameter.numel()}, {1});
}

at::Tensor Flat::empty() const {
  return at::empty({length}, at::TensorOptions(parameters.front().options())
                                 .requires_grad(false)
                                 .memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor Flat::message() const {
  return in_place ? flat_view(parameters.front()) : empty();
}

void Flat::read(at::Tensor buffer) const {
  if (in_place) return;
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    like(buffer, offset, parameter).copy_(parameter.detach());
    offset += parameter.numel();
  }
}

void Flat::write(const at::Tensor& buffer) const {
  if (in_place) {
    // Autograd finds out by it that a value it saved is gone.
    parameters.front().unsafeGetTensorImpl()->bump_version();
    return;
  }
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.detach().copy_(like(buffer, offset, parameter));
    offset += parameter.numel();
  }
}

void Flat::settle_in(at::Tensor buffer) const {
  read(buffer);
  int64_t offset = 0;
  for (at::Tensor parameter : parameters) {
    parameter.set_data(like(buffer, offset, parameter));
    offset += parameter.numel();
  }
}

std::vector<Flat> make_flats(const std::vector<at::Tensor>& parameters,
                             const std::vector<int>& owners, int64_t most, int64_t alone) {
  using Kind = std::tuple<int, at::ScalarType, std::string>;
  std::map<Kind, size_t> open;  // where parameters of a kind go
  std::vector<Flat> flats;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (parameter.is_cpu() && parameter.is_non_overlapping_and_dense() &&
        static_cast<int64_t>(parameter.nbytes()) >= alone) {
      flats.push_back({owners[i], {parameter}, parameter.numel(), /*in_place=*/true});
      continue;
    }
    const Kind kind{owners[i], parameter.scalar_type(), parameter.device().str()};
    const int64_t most_elements = most / static_cast<int64_t>(parameter.dtype().itemsize());
    const auto found = open.find(kind);
    if (found == open.end() ||
        flats[found->second].length + parameter.numel() > most_elements) {
      open[kind] = flats.size();
      flats.push_back({.owner = owners[i], .parameters = {}});
    }
    Flat& flat = flats[open[kind]];
    flat.parameters.push_back(parameter);
    flat.length += parameter.numel();
  }
  return flats;
}

Task<void> share_flats(std::vector<Flat> flats, Comm& comm, MakeFlat make) {
  if (comm.backend() != "gloo") {
    // With NCCL a broadcast holds up all that comes after it.
    for (const Flat& flat : flats) make(flat);
    make = [](const Flat&) {};
  }
  if (comm.size() == 1) co_return;
  co_await comm.split(static_cast<int>(flats.size()), [&](int index, Comm& lane) {
    return share_flat(flats[static_cast<size_t>(index)], lane, make);
  });
}

}  // namespace brigade::optim
