#include "codec/codec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "brigade/error.h"
#include "kernels/patterns.h"

namespace brigade {
namespace {

using testing::Pattern;
using testing::patterns;

struct Row {
  const char* name;
  std::unique_ptr<Codec> (*make)(CodecPath);
  int64_t block;
  double relative;  // the error's bound, as a share of the largest magnitude
  int64_t (*bytes)(int64_t elements);
  int64_t codes_of = 1;  // values that are coded together
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

const Row kRows[] = {
    {"fp16", make_fp16_codec, 64, 0x1p-11, [](int64_t n) { return 2 * n; }},
    {"bf16", make_bf16_codec, 64, 0x1p-8, [](int64_t n) { return 2 * n; }},
    {"int8", make_int8_codec, 256, 0.5 / 127, [](int64_t n) { return n + n / 256 * 4; }},
    {"int4", make_int4_codec, 128, 0.2, [](int64_t n) { return n / 2 + n / 128 * 4; }, 128},
    {"topk", [](CodecPath path) { return make_top_k_codec(0.25, path); }, 64, 1.0,
     [](int64_t n) { return n + (n / 4 + 1) / 2 * 4; }, int64_t{1} << 40},
    {"affine_block", make_affine_block_codec, 512, 1.0 / 255,
     [](int64_t n) { return n + n / 512 * 8; }},
    {"affine_tensor", make_affine_tensor_codec, 64, 1.0 / 255,
     [](int64_t n) { return n + 8; }},
};

at::Tensor tensor_of(const Pattern& pattern, int64_t size, unsigned seed = 1) {
  const std::vector<float> values = testing::make(pattern, size, seed);
  return at::tensor(values, at::kFloat);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

class CodecContract : public ::testing::TestWithParam<Row> {
 protected:
  std::unique_ptr<Codec> codec = GetParam().make(CodecPath::by_device);
  std::unique_ptr<Codec> aten = GetParam().make(CodecPath::aten);

  int64_t chunk_for(int64_t size) const {
    return (size + codec->block() - 1) / codec->block() * codec->block();
  }
  static at::Tensor encode(const Codec& codec, const at::Tensor& values, int64_t chunk,
                           double scale = 1, const at::Tensor& residual = {}) {
    at::Tensor wire = at::full({codec.wire_bytes(chunk)}, 0xaa, at::kByte);
    codec.encode(values, chunk, scale, residual, wire);
    return wire;
  }
  static at::Tensor decode(const Codec& codec, const at::Tensor& wire, int64_t chunk,
                           int64_t size) {
    at::Tensor out = at::full({size}, -7.0f);
    codec.decode(wire, chunk, out);
    return out;
  }
  at::Tensor round_trip(const at::Tensor& values, double scale = 1) const {
    const int64_t chunk = chunk_for(values.numel());
    return decode(*codec, encode(*codec, values, chunk, scale), chunk, values.numel());
  }
  // Calls check(pattern, values, chunk) with values that fill the chunk, leave a tail, or
  // leave whole blocks empty.
  template <class Check>
  void for_all(Check check) const {
    for (const Pattern& pattern : patterns()) {
      for (int64_t size : {0, 1, 17, 255, 256, 257, 512, 1024, 1300, 4097}) {
        for (int64_t extra : {0, 2}) {
          SCOPED_TRACE(pattern.name + ", " + std::to_string(size) + " + " +
                       std::to_string(extra) + " blocks");
          ASSERT_NO_FATAL_FAILURE(check(pattern, tensor_of(pattern, size),
                                        chunk_for(size) + extra * codec->block()));
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, CodecContract, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

TEST_P(CodecContract, SaysItsNameItsBlockAndItsBytes) {
  EXPECT_EQ(codec->name(), GetParam().name);
  EXPECT_EQ(codec->block(), GetParam().block);
  for (int64_t blocks : {0, 1, 2, 1000}) {
    const int64_t bytes = codec->wire_bytes(blocks * codec->block());
    EXPECT_EQ(bytes, GetParam().bytes(blocks * codec->block()));
    EXPECT_EQ(bytes % 4, 0);
  }
}

TEST_P(CodecContract, FiniteValuesComeBackWithinTheirBound) {
  for (const char* name : {"normal", "zeros", "constant", "100 to 100.2", "negative"}) {
    for (const Pattern& pattern : patterns()) {
      if (pattern.name != name) continue;
      const at::Tensor x = tensor_of(pattern, 4097);
      const double top = x.abs().max().item<double>();
      EXPECT_LE((round_trip(x) - x).abs().max().item<double>(),
                top * GetParam().relative * (1 + 1e-5))
          << name;
    }
  }
}

TEST_P(CodecContract, AtenGivesTheKernelsBytesAndValues) {
  for_all([&](const Pattern& pattern, const at::Tensor& x, int64_t chunk) {
    at::Tensor residual, residual_aten;
    if (codec->takes_residual()) residual = tensor_of(pattern, x.numel(), 5).mul_(0.25);
    if (codec->takes_residual()) residual_aten = residual.clone();
    const at::Tensor wire = encode(*codec, x, chunk, 1.0 / 3, residual);
    const at::Tensor wire_aten = encode(*aten, x, chunk, 1.0 / 3, residual_aten);
    if (pattern.finite) {  // otherwise NaN payloads may differ
      ASSERT_TRUE(at::equal(wire, wire_aten))
          << (wire != wire_aten).nonzero().slice(0, 0, 9);
    }
    const at::Tensor out = decode(*codec, wire, chunk, x.numel());
    ASSERT_TRUE(same(out, decode(*aten, wire, chunk, x.numel())));
    ASSERT_TRUE(same(out, decode(*aten, wire_aten, chunk, x.numel())));
    if (residual.defined()) {
      ASSERT_TRUE(same(residual, residual_aten));
    }
    at::Tensor sum = x.clone(), sum_aten = x.clone();
    codec->decode_add(wire, chunk, sum);
    aten->decode_add(wire, chunk, sum_aten);
    ASSERT_TRUE(same(sum, sum_aten));
  });
}

TEST_P(CodecContract, ReduceEncodesTheMeanOfItsOwnAndTheMessages) {
  const int64_t chunk = chunk_for(1300);
  const at::Tensor own = at::randn({1300}), first = at::randn({1300}),
                   second = at::randn({1300});
  const at::Tensor messages =
      at::cat({encode(*codec, first, chunk), encode(*codec, second, chunk)});
  at::Tensor expected = own + decode(*codec, messages.chunk(2)[0], chunk, 1300) +
                        decode(*codec, messages.chunk(2)[1], chunk, 1300);
  at::Tensor residual, lost;
  if (codec->takes_residual()) lost = (residual = at::randn({1300})).clone();
  if (codec->takes_residual()) expected += residual;
  for (const auto* which : {codec.get(), aten.get()}) {
    at::Tensor wire = at::full({codec->wire_bytes(chunk)}, 0xaa, at::kByte);
    at::Tensor now = lost.defined() ? lost.clone() : lost;
    which->reduce(own.clone(), messages, chunk, 3, now, wire);
    const at::Tensor mean = decode(*codec, wire, chunk, 1300);
    const double top = expected.abs().max().item<double>() / 3;
    EXPECT_LE((mean - expected / 3).abs().max().item<double>(),
              top * GetParam().relative * 1.001);
    // No error is lost: the residual holds what the mean lacks, times the divisor.
    if (now.defined()) {
      EXPECT_LE((mean * 3 + now - expected).abs().max().item<double>(), 1e-5);
    }
  }
}

TEST_P(CodecContract, DecodeAddAddsWhatDecodeGives) {
  for_all([&](const Pattern&, const at::Tensor& x, int64_t chunk) {
    const at::Tensor wire = encode(*codec, x, chunk);
    at::Tensor sum = at::ones({x.numel()});
    codec->decode_add(wire, chunk, sum);
    ASSERT_TRUE(same(sum, decode(*codec, wire, chunk, x.numel()) + 1.0));
  });
}

TEST_P(CodecContract, PaddingIsZeroAndChangesNothing) {
  for_all([&](const Pattern&, const at::Tensor& x, int64_t chunk) {
    const at::Tensor wire = encode(*codec, x, chunk);
    const int64_t together = GetParam().codes_of;
    const int64_t free = (chunk - x.numel()) / together * together;
    const int64_t tail = free * (GetParam().bytes(1024) / 64) / 16;
    ASSERT_TRUE(wire.narrow(0, wire.numel() - tail, tail).eq(0).all().item<bool>());
    const int64_t tight = chunk_for(x.numel());
    ASSERT_TRUE(same(decode(*codec, wire, chunk, x.numel()),
                     decode(*codec, encode(*codec, x, tight), tight, x.numel())));
  });
}

TEST_P(CodecContract, ScaleMultipliesBeforeEncoding) {
  const at::Tensor x = tensor_of(patterns()[0], 1300);
  EXPECT_TRUE(at::equal(round_trip(x, 0.2), round_trip(x.mul(0.2f))));
}

TEST_P(CodecContract, ScalingByAPowerOfTwoScalesTheResult) {
  const at::Tensor x = tensor_of(patterns()[0], 1300);
  const at::Tensor once = round_trip(x);
  const at::Tensor large = at::where(x.abs() > 0x1p-10, once, at::zeros_like(once));
  const at::Tensor twice = round_trip(x, 0.25);  // normal halves stay normal
  EXPECT_TRUE(
      at::equal(at::where(x.abs() > 0x1p-10, twice, at::zeros_like(twice)), large * 0.25));
}

TEST_P(CodecContract, NotFiniteComesOutNotFiniteAndOneStepLaterAllIsWell) {
  at::Tensor x = tensor_of(patterns()[0], 1300);
  at::Tensor residual = codec->takes_residual() ? at::full({1300}, 0.125f) : at::Tensor();
  const int64_t chunk = chunk_for(1300);
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor spoilt = x.clone();
    spoilt[700] = bad;
    const at::Tensor wire = encode(*codec, spoilt, chunk, 1, residual);
    EXPECT_FALSE(decode(*codec, wire, chunk, 1300)[700].isfinite().item<bool>());
    if (residual.defined()) {
      EXPECT_EQ(residual[700].item<float>(), 0.125f);
      EXPECT_TRUE(residual.isfinite().all().item<bool>());
    }
  }
  const at::Tensor wire = encode(*codec, x, chunk, 1, residual);
  EXPECT_TRUE(decode(*codec, wire, chunk, 1300).isfinite().all().item<bool>());
}

TEST_P(CodecContract, ErrorFeedbackKeepsTheSum) {
  if (!codec->takes_residual()) {
    EXPECT_THROW(encode(*codec, at::zeros({64}), 64, 1, at::zeros({64})), Error);
    return;
  }
  const int64_t size = 1300, chunk = chunk_for(size);
  at::Tensor residual = at::zeros({size}), sent = at::zeros({size}, at::kDouble);
  at::Tensor meant = at::zeros({size}, at::kDouble);
  for (unsigned step = 0; step < 20; ++step) {
    const at::Tensor x = tensor_of(patterns()[0], size, 100 + step);
    const at::Tensor p = x.mul(0.5f).add(residual);
    const at::Tensor wire = encode(*codec, x, chunk, 0.5, residual);
    const at::Tensor out = decode(*codec, wire, chunk, size);
    ASSERT_TRUE(at::equal(residual, p - out)) << "the residual is what was lost";
    sent.add_(out);
    meant.add_(x.mul(0.5f));
  }
  EXPECT_LE((sent + residual - meant).abs().max().item<double>(), 1e-5);
}

TEST_P(CodecContract, MessagesLieSideBySide) {
  const int64_t chunk = 2 * codec->block(), bytes = codec->wire_bytes(chunk);
  const at::Tensor x = tensor_of(patterns()[0], 3 * chunk - 5);
  at::Tensor wire = at::empty({3 * bytes}, at::kByte), out = at::empty_like(x);
  for (const Codec* c : {codec.get(), aten.get()}) {
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t size = std::min(chunk, x.numel() - i * chunk);
      c->encode(x.narrow(0, i * chunk, size), chunk, 1, {},
                wire.narrow(0, i * bytes, bytes));
      c->decode(wire.narrow(0, i * bytes, bytes), chunk, out.narrow(0, i * chunk, size));
    }
    EXPECT_LE((out - x).abs().max().item<double>(),
              x.abs().max().item<double>() * GetParam().relative * 1.001);
  }
}

TEST_P(CodecContract, WrongArgumentsAreNamed) {
  const int64_t chunk = codec->block(), bytes = codec->wire_bytes(chunk);
  const at::Tensor x = at::zeros({chunk}), wire = at::empty({bytes}, at::kByte);
  const auto text = [&](const at::Tensor& values, int64_t elements, const at::Tensor& to) {
    try {
      codec->encode(values, elements, 1, {}, to);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(text(x.to(at::kDouble), chunk, wire).find("values is Double"),
            std::string::npos);
  EXPECT_NE(text(at::zeros({chunk, 2}).select(1, 0), chunk, wire).find("strided"),
            std::string::npos);
  EXPECT_NE(text(at::zeros({chunk + 1}), chunk, wire).find("at most"), std::string::npos);
  EXPECT_NE(text(x, chunk + 1, wire).find("multiple of"), std::string::npos);
  EXPECT_NE(text(x, chunk, wire.narrow(0, 0, bytes - 1)).find("wire is Byte"),
            std::string::npos);
  EXPECT_NE(
      text(x, chunk, at::empty({bytes + 1}, at::kByte).narrow(0, 1, bytes)).find("aligned"),
      std::string::npos);
  EXPECT_THROW(codec->decode(wire, chunk, at::zeros({chunk + 1})), Error);
}

}  // namespace
}  // namespace brigade
