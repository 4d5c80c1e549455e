#include "codec/codec.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>

#include "brigade/error.h"
#include "codec/cuda_module.h"

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

// to = from / divisor; the two may be the same memory.
void divide(std::span<const float> from, float divisor, std::span<float> to) {
  const float inverse = 1 / divisor;
  if (divisor == 1) {
    if (to.data() != from.data()) std::ranges::copy(from, to.begin());
  } else if (std::has_single_bit(static_cast<unsigned>(divisor))) {
    // Gives the same bits in less time.
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] * inverse;
  } else {
    for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] / divisor;
  }
}

}  // namespace

Codec::Backend Codec::backend_for(const at::Tensor& tensor) const {
  if (path_ == CodecPath::aten) return Backend::aten;
  if (tensor.is_cpu()) return Backend::cpu;
  const bool kernels =
      tensor.is_cuda() && has_cuda_kernels() && cuda_kernels(tensor.device());
  return kernels ? Backend::cuda : Backend::aten;
}

int64_t Codec::wire_bytes(int64_t chunk_elements) const {
  if (chunk_elements < 0 || chunk_elements % granularity_ != 0) {
    throw Error("codec " + name_ + ": a chunk of " + std::to_string(chunk_elements) +
                " elements; expected a multiple of " + std::to_string(granularity_));
  }
  return header_bytes(chunk_elements) + code_bytes(chunk_elements);
}

void Codec::encode(const at::Tensor& values, int64_t chunk_elements, double scale,
                   const Residuals& residual, const at::Tensor& wire) const {
  encode_share(values, chunk_elements, scale, residual, 1, wire);
}

void Codec::encode_share(const at::Tensor& values, int64_t chunk_elements, double scale,
                         const Residuals& residual, int divisor,
                         const at::Tensor& wire) const {
  check_floats(values, "values", chunk_elements);
  check_residual(residual, values);
  check_wire(wire, values, chunk_elements);
  const auto factor = static_cast<float>(scale);
  const int64_t split = header_bytes(chunk_elements);
  const int64_t filled = code_bytes(values.numel());
  const Backend backend = backend_for(values);
  const bool empty = values.numel() == 0;
  // The CPU kernels read the residual once, group by group.
  const at::Tensor lost =
      backend == Backend::cpu || empty ? residual.next : residual.copied();
  const bool divides = backend != Backend::cpu && divisor != 1 && lost.defined();
  // CUDA would multiply by the reciprocal of a number, with other bits; so this is a
  // tensor.
  const at::Tensor by = divides ? at::scalar_tensor(divisor, lost.options()) : lost;
  if (divides) lost.div_(by);
  if (backend == Backend::aten) {
    wire.zero_();
    if (!empty)
      encode_aten(values, factor, lost, wire.narrow(0, 0, split),
                  wire.narrow(0, split, wire.numel() - split));
  } else {
    const Bytes bytes = span_of<uint8_t>(wire);
    const Bytes headers = bytes.first(split), codes = bytes.subspan(split);
    if (values.numel() < chunk_elements || empty) {
      if (backend == Backend::cuda) {
        wire.zero_();
      } else {
        std::ranges::fill(headers, uint8_t{0});
        std::ranges::fill(codes.subspan(filled), uint8_t{0});
      }
    }
    if (empty) return;
    const auto from = const_span_of<float>(values);
    if (backend == Backend::cpu)
      return encode_pieces(from, factor, residual, divisor, headers, codes);
    const auto to = lost.defined() ? span_of<float>(lost) : std::span<float>{};
    on_cuda("codec " + name_, values, [&](const OnCuda& cuda) {
      return encode_cuda(cuda, from, factor, to, headers, codes);
    });
  }
  if (divides) lost.mul_(by);
}

void Codec::encode_pieces(std::span<const float> values, float scale,
                          const Residuals& residual, int divisor, Bytes headers,
                          Bytes codes) const {
  if (!residual.defined()) return encode_kernel(values, scale, {}, headers, codes);
  const auto next = span_of<float>(residual.next);
  if (residual.in_place() && divisor == 1)
    return encode_kernel(values, scale, next, headers, codes);
  const auto last = const_span_of<float>(residual.last);
  if (encode_share_kernel(values, scale, last, next, divisor, headers, codes)) return;
  const auto whole = static_cast<int64_t>(values.size());
  const int64_t step = piece() > 0 ? piece() : whole;
  for (int64_t at = 0; at < whole; at += step) {
    const auto size = static_cast<size_t>(std::min(step, whole - at));
    const auto lost = next.subspan(at, size);
    divide(last.subspan(at, size), static_cast<float>(divisor), lost);
    // header_bytes(0) is not 0 if a message has one header in all.
    encode_kernel(values.subspan(at, size), scale, lost,
                  headers.subspan(at > 0 ? header_bytes(at) : 0),
                  codes.subspan(at > 0 ? code_bytes(at) : 0));
    if (divisor == 1) continue;
    for (float& value : lost) value *= static_cast<float>(divisor);
  }
}

void Codec::reduce(const at::Tensor& own, const at::Tensor& messages,
                   int64_t chunk_elements, int divisor, const Residuals& residual,
                   const at::Tensor& wire) const {
  const int64_t bytes = wire_bytes(chunk_elements);
  const int64_t count = bytes > 0 ? messages.numel() / bytes : 0;
  if (backend_for(own) != Backend::cuda || own.numel() == 0) {
    for (int64_t i = 0; i < count; ++i)
      decode_add(messages.narrow(0, i * bytes, bytes), chunk_elements, own);
    return encode_share(own, chunk_elements, 1.0 / divisor, residual, divisor, wire);
  }
  check_floats(own, "values", chunk_elements);
  check_residual(residual, own);
  check_wire(wire, own, chunk_elements);
  for (int64_t i = 0; i < count; ++i)
    check_wire(messages.narrow(0, i * bytes, bytes), own, chunk_elements);
  if (own.numel() < chunk_elements) wire.zero_();
  const auto split = static_cast<size_t>(header_bytes(chunk_elements));
  auto* made = wire.mutable_data_ptr<uint8_t>();
  const at::Tensor lost = residual.copied();
  on_cuda("codec " + name_, own, [&](const OnCuda& cuda) {
    return reduce_cuda(cuda,
                       {messages.const_data_ptr<uint8_t>(), static_cast<size_t>(bytes),
                        split, static_cast<int>(count)},
                       {own.mutable_data_ptr<float>(),
                        lost.defined() ? lost.mutable_data_ptr<float>() : nullptr, divisor,
                        made, made + split, static_cast<size_t>(own.numel())});
  });
}

void Codec::decode(const at::Tensor& wire, int64_t chunk_elements,
                   const at::Tensor& out) const {
  decode_to(wire, chunk_elements, out, false);
}

void Codec::decode_add(const at::Tensor& wire, int64_t chunk_elements,
                       const at::Tensor& out) const {
  decode_to(wire, chunk_elements, out, true);
}

void Codec::decode_to(const at::Tensor& wire, int64_t chunk_elements, const at::Tensor& out,
                      bool add) const {
  check_floats(out, "out", chunk_elements);
  check_wire(wire, out, chunk_elements);
  if (out.numel() == 0) return;
  const int64_t split = header_bytes(chunk_elements);
  const Backend backend = backend_for(out);
  if (backend != Backend::aten) {
    const ConstBytes bytes = const_span_of<uint8_t>(wire);
    const ConstBytes headers = bytes.first(split), codes = bytes.subspan(split);
    const auto to = span_of<float>(out);
    if (backend == Backend::cpu) return decode_kernel(headers, codes, to, add);
    return on_cuda("codec " + name_, out, [&](const OnCuda& cuda) {
      return decode_cuda(cuda, headers, codes, to, add);
    });
  }
  const at::Tensor decoded = decode_aten(
      wire.narrow(0, 0, split), wire.narrow(0, split, wire.numel() - split), out.numel());
  add ? out.add_(decoded) : out.copy_(decoded);
}

void Codec::check_floats(const at::Tensor& tensor, const char* what,
                         int64_t chunk_elements) const {
  if (tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.dim() == 1 &&
      tensor.is_contiguous() && tensor.numel() <= chunk_elements) {
    return;
  }
  throw Error("codec " + name_ + ": " + what + " is " + describe(tensor) +
              "; expected a contiguous 1-D float32 tensor of at most " +
              std::to_string(chunk_elements) + " elements");
}

void Codec::check_residual(const Residuals& residual, const at::Tensor& values) const {
  if (!residual.defined()) return;
  if (!takes_residual()) throw Error("codec " + name_ + " takes no residual");
  for (const at::Tensor& tensor : {residual.last, residual.next}) {
    if (tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
        tensor.sizes() == values.sizes() && tensor.device() == values.device()) {
      continue;
    }
    throw Error("codec " + name_ + ": residual is " + describe(tensor) +
                "; expected one like the values, " + describe(values));
  }
}

void Codec::check_wire(const at::Tensor& wire, const at::Tensor& values,
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
