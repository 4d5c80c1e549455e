// Gives every codec's decoders messages of any bytes, as a peer could send them. The first
// two bytes choose the codec and the number of values. The result may be nonsense, but the
// two implementations must agree, and neither may touch foreign memory.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "codec/codec.h"
#include "fuzz.h"

namespace {

using namespace brigade;

using Make = std::unique_ptr<Codec> (*)(CodecPath);
constexpr std::array<Make, 7> kMakers{
    &make_fp16_codec,
    &make_bf16_codec,
    &make_int8_codec,
    &make_affine_block_codec,
    &make_affine_tensor_codec,
    &make_int4_codec,
    [](CodecPath path) { return make_top_k_codec(0.25, path); }};

bool same(const at::Tensor& a, const at::Tensor& b) {
  const auto* x = a.const_data_ptr<float>();
  const auto* y = b.const_data_ptr<float>();
  for (int64_t i = 0; i < a.numel(); ++i)
    if (x[i] != y[i] && !(x[i] != x[i] && y[i] != y[i])) return false;
  return true;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  static const bool one_thread = [] {
    at::set_num_threads(1);
    return true;
  }();
  static_cast<void>(one_thread);
  const c10::InferenceMode no_gradients;
  const Make make = kMakers[bytes[0] % kMakers.size()];
  const auto by_kernel = make(CodecPath::by_device);
  const auto by_aten = make(CodecPath::aten);
  const int64_t chunk = by_kernel->block() * (1 + bytes[1] % 2);
  const int64_t values = std::min<int64_t>(chunk, 1 + bytes[1] * 5);
  const at::Tensor wire = at::zeros({by_kernel->wire_bytes(chunk)}, at::kByte);
  std::memcpy(wire.mutable_data_ptr(), bytes + 2, std::min(size - 2, wire.nbytes()));
  const at::Tensor first = at::ones({values});
  const at::Tensor second = at::ones({values});
  by_kernel->decode(wire, chunk, first);
  by_aten->decode(wire, chunk, second);
  if (!same(first, second)) std::abort();
  // No encoder writes a position twice; such values are added in two orders. Onto zeros
  // these give the same sum.
  if (by_kernel->name() == "topk") first.zero_(), second.zero_();
  by_kernel->decode_add(wire, chunk, first);
  by_aten->decode_add(wire, chunk, second);
  if (!same(first, second)) std::abort();
  // The length differs from the one that the chunk needs.
  const int64_t given = static_cast<int64_t>(size - 2) / 4 * 4;
  const at::Tensor other = at::zeros({given}, at::kByte);
  if (given != wire.numel() &&
      fuzzing::accepts<Error>([&] { by_kernel->decode(other, chunk, first); }))
    std::abort();
  return 0;
}
