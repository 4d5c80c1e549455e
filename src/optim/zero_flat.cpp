#include "optim/zero_flat.h"

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

Task<void> share_flat(const Flat& flat, Comm& comm) {
  at::Tensor buffer = flat.empty();
  const bool mine = flat.owner == comm.rank();
  if (mine) flat.read(buffer);
  co_await comm.broadcast(buffer, flat.owner);
  if (!mine) flat.write(buffer);
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

void Flat::read(at::Tensor buffer) const {
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    like(buffer, offset, parameter).copy_(parameter.detach());
    offset += parameter.numel();
  }
}

void Flat::write(const at::Tensor& buffer) const {
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
                             const std::vector<int>& owners, int64_t most) {
  using Kind = std::tuple<int, at::ScalarType, std::string>;
  std::map<Kind, size_t> open;  // where parameters of a kind go
  std::vector<Flat> flats;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
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

Task<void> share_flats(std::vector<Flat> flats, Comm& comm) {
  if (comm.size() == 1) co_return;
  co_await comm.split(static_cast<int>(flats.size()), [&](int index, Comm& lane) {
    return share_flat(flats[static_cast<size_t>(index)], lane);
  });
}

}  // namespace brigade::optim
