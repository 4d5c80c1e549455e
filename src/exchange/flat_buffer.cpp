#include "exchange/flat_buffer.h"

#include <ATen/ATen.h>

#include <map>
#include <tuple>

namespace brigade {
namespace {

// The part of `flat` that belongs to a parameter, in its shape.
at::Tensor part_like(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) {
    return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
  }
  return flat.as_strided(parameter.sizes(), parameter.strides(),
                         flat.storage_offset() + offset);
}

Task<void> share_flat_buffer(const FlatBuffer& flat, Comm& comm,
                             const PrepareBuffer& prepare) {
  prepare(flat);
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

at::Tensor FlatBuffer::empty() const {
  return at::empty({length}, at::TensorOptions(parameters.front().options())
                                 .requires_grad(false)
                                 .memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor FlatBuffer::message() const {
  return in_place ? flat_view(parameters.front()) : empty();
}

void FlatBuffer::read(at::Tensor message) const {
  if (in_place) return;
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    part_like(message, offset, parameter).copy_(parameter.detach());
    offset += parameter.numel();
  }
}

void FlatBuffer::write(const at::Tensor& message) const {
  if (in_place) {
    // By the version autograd finds out that a value it saved is gone.
    parameters.front().unsafeGetTensorImpl()->bump_version();
    return;
  }
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    parameter.detach().copy_(part_like(message, offset, parameter));
    offset += parameter.numel();
  }
}

void FlatBuffer::move_into(at::Tensor memory) const {
  read(memory);
  int64_t offset = 0;
  for (at::Tensor parameter : parameters) {
    parameter.set_data(part_like(memory, offset, parameter));
    offset += parameter.numel();
  }
}

std::vector<FlatBuffer> make_flat_buffers(const std::vector<at::Tensor>& parameters,
                                          const std::vector<int>& owners, int64_t most,
                                          int64_t alone) {
  using Kind = std::tuple<int, at::ScalarType, std::string>;
  std::map<Kind, size_t> open;  // where parameters of a kind go
  std::vector<FlatBuffer> buffers;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (parameter.is_cpu() && parameter.is_non_overlapping_and_dense() &&
        static_cast<int64_t>(parameter.nbytes()) >= alone) {
      buffers.push_back({owners[i], {parameter}, parameter.numel(), /*in_place=*/true});
      continue;
    }
    const Kind kind{owners[i], parameter.scalar_type(), parameter.device().str()};
    const int64_t most_elements = most / static_cast<int64_t>(parameter.dtype().itemsize());
    const auto found = open.find(kind);
    if (found == open.end() ||
        buffers[found->second].length + parameter.numel() > most_elements) {
      open[kind] = buffers.size();
      buffers.push_back({.owner = owners[i], .parameters = {}});
    }
    FlatBuffer& flat = buffers[open[kind]];
    flat.parameters.push_back(parameter);
    flat.length += parameter.numel();
  }
  return buffers;
}

Task<void> share_flat_buffers(std::vector<FlatBuffer> buffers, Comm& comm,
                              PrepareBuffer prepare) {
  if (comm.runs_inline()) {
    // With NCCL a broadcast holds up all that comes after it.
    for (const FlatBuffer& buffer : buffers) prepare(buffer);
    prepare = [](const FlatBuffer&) {};
  }
  if (comm.size() == 1) co_return;
  co_await comm.split(static_cast<int>(buffers.size()), [&](int index, Comm& lane) {
    return share_flat_buffer(buffers[static_cast<size_t>(index)], lane, prepare);
  });
}

}  // namespace brigade
