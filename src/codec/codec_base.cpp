#include "codec/codec_base.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "brigade/error.h"

namespace brigade {
namespace {

template <class T>
std::span<T> span_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}
template <class T>
std::span<const T> const_span_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = c10::toString(tensor.scalar_type());
  for (int64_t size : tensor.sizes()) text += " x " + std::to_string(size);
  return text + (tensor.is_contiguous() ? "" : ", strided") + " on " +
         tensor.device().str();
}

}  // namespace

int64_t CodecBase::wire_bytes(int64_t chunk_elements) const {
  if (chunk_elements < 0 || chunk_elements % granularity_ != 0) {
    throw Error("codec " + name_ + ": a chunk of " + std::to_string(chunk_elements) +
                " elements; expected a multiple of " + std::to_string(granularity_));
  }
  return header_bytes(chunk_elements) + chunk_elements * bytes_per_code();
}

void CodecBase::encode(const at::Tensor& values, int64_t chunk_elements, double scale,
                       const at::Tensor& residual, const at::Tensor& wire) const {
  check_floats(values, "values", chunk_elements);
  check_residual(residual, values);
  check_wire(wire, values, chunk_elements);
  const auto factor = static_cast<float>(scale);
  const int64_t split = header_bytes(chunk_elements);
  const int64_t filled = values.numel() * bytes_per_code();
  if (!kernels_for(values)) {
    wire.zero_();
    if (values.numel() == 0) return;
    encode_aten(values, factor, residual, wire.narrow(0, 0, split),
                wire.narrow(0, split, wire.numel() - split));
    return;
  }
  const Bytes bytes = span_of<uint8_t>(wire);
  const Bytes headers = bytes.first(split), codes = bytes.subspan(split);
  if (values.numel() < chunk_elements || values.numel() == 0) {
    std::ranges::fill(headers, uint8_t{0});
    std::ranges::fill(codes.subspan(filled), uint8_t{0});
  }
  if (values.numel() == 0) return;
  encode_kernel(const_span_of<float>(values), factor,
                residual.defined() ? span_of<float>(residual) : std::span<float>{}, headers,
                codes);
}

void CodecBase::decode(const at::Tensor& wire, int64_t chunk_elements,
                       const at::Tensor& out) const {
  decode_to(wire, chunk_elements, out, false);
}

void CodecBase::decode_add(const at::Tensor& wire, int64_t chunk_elements,
                           const at::Tensor& out) const {
  decode_to(wire, chunk_elements, out, true);
}

void CodecBase::decode_to(const at::Tensor& wire, int64_t chunk_elements,
                          const at::Tensor& out, bool add) const {
  check_floats(out, "out", chunk_elements);
  check_wire(wire, out, chunk_elements);
  if (out.numel() == 0) return;
  const int64_t split = header_bytes(chunk_elements);
  if (kernels_for(out)) {
    const ConstBytes bytes = const_span_of<uint8_t>(wire);
    decode_kernel(bytes.first(split), bytes.subspan(split), span_of<float>(out), add);
    return;
  }
  const at::Tensor decoded = decode_aten(
      wire.narrow(0, 0, split), wire.narrow(0, split, wire.numel() - split), out.numel());
  add ? out.add_(decoded) : out.copy_(decoded);
}

void CodecBase::check_floats(const at::Tensor& tensor, const char* what,
                             int64_t chunk_elements) const {
  if (tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.dim() == 1 &&
      tensor.is_contiguous() && tensor.numel() <= chunk_elements) {
    return;
  }
  throw Error("codec " + name_ + ": " + what + " is " + describe(tensor) +
              "; expected a contiguous 1-D float32 tensor of at most " +
              std::to_string(chunk_elements) + " elements");
}

void CodecBase::check_residual(const at::Tensor& residual, const at::Tensor& values) const {
  if (!residual.defined()) return;
  if (!takes_residual()) throw Error("codec " + name_ + " takes no residual");
  if (residual.scalar_type() == at::kFloat && residual.is_contiguous() &&
      residual.sizes() == values.sizes() && residual.device() == values.device()) {
    return;
  }
  throw Error("codec " + name_ + ": residual is " + describe(residual) +
              "; expected one like the values, " + describe(values));
}

void CodecBase::check_wire(const at::Tensor& wire, const at::Tensor& values,
                           int64_t chunk_elements) const {
  const int64_t bytes = wire_bytes(chunk_elements);
  if (wire.defined() && wire.scalar_type() == at::kByte && wire.dim() == 1 &&
      wire.is_contiguous() && wire.numel() == bytes && wire.device() == values.device() &&
      reinterpret_cast<uintptr_t>(wire.const_data_ptr()) % alignof(float) == 0) {
    return;
  }
  throw Error("codec " + name_ + ": wire is " + describe(wire) +
              "; expected a contiguous 1-D uint8 tensor of " + std::to_string(bytes) +
              " bytes, aligned to 4 bytes, on " + values.device().str());
}

}  // namespace brigade
