// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one row: formats against core/dtypes.h, the micro vectors of the specification, and equal bits on every
// instruction set.
#include "backends/cpu/row_ops.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

using device::KeyFormat;

std::vector<float> Random(size_t n, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

class RowOpsTest : public testing::TestWithParam<CpuIsa> {
 protected:
  const RowOps& ops() const { return RowOpsFor(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Isa, RowOpsTest, testing::ValuesIn(SupportedCpuIsas()),
                         [](const auto& param_info) { return std::string(CpuIsaName(param_info.param)); });

TEST_P(RowOpsTest, MicroVectorOfTheFormats) {
  std::vector<float> x(32), y(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = RoundToBf16((static_cast<float>(i) - 15.5f) * 0.37f);
  uint8_t data[32], scale[2];
  ops().fake_fp8(x.data(), 32, y.data());
  EXPECT_EQ(y[0], -6.0f);
  EXPECT_EQ(y[1], -5.5f);
  ops().encode_key(KeyFormat::kMxFp8, y.data(), 32, data, scale);
  EXPECT_EQ(scale[0], 121);
  const uint8_t fp8[] = {252, 251, 250, 249, 248, 248, 246, 245, 243, 242, 240, 237, 234, 231, 225, 212,
                         84,  97,  103, 106, 109, 112, 114, 115, 117, 118, 120, 120, 121, 122, 123, 124};
  EXPECT_EQ(std::memcmp(data, fp8, 32), 0);

  ops().fake_fp4_pow2(x.data(), 32, y.data());
  ops().encode_key(KeyFormat::kFp4Pow2, y.data(), 32, data, scale);
  EXPECT_EQ(scale[0], 127);
  const uint8_t fp4[] = {0xff, 0xee, 0xee, 0xde, 0xcd, 0xbc, 0xab, 0x89, 0x10, 0x32, 0x43, 0x54, 0x65, 0x66, 0x66, 0x77};
  EXPECT_EQ(std::memcmp(data, fp4, 16), 0);

  ops().fake_fp4_e4m3(x.data(), 32, y.data());
  ops().encode_key(KeyFormat::kFp4E4m3, y.data(), 32, data, scale);
  EXPECT_EQ(scale[0], 55);
  EXPECT_EQ(scale[1], 55);
  const uint8_t fp4_16[] = {0xff, 0xef, 0xee, 0xde, 0xdd, 0xcc, 0xab, 0x89, 0x10, 0x32, 0x44, 0x55, 0x65, 0x66, 0x76, 0x77};
  EXPECT_EQ(std::memcmp(data, fp4_16, 16), 0);
}

TEST_P(RowOpsTest, RoundingFollowsTheScalarFormats) {
  // Every size from the floor of a block to large values, ties included.
  for (uint32_t seed = 0; seed < 200; ++seed) {
    auto x = Random(64, std::ldexp(1.0f, static_cast<int>(seed % 40) - 24), seed);
    x[3] = -0.0f;
    if (seed % 3 == 0)
      for (float& v : x) v = RoundToBf16(v);
    std::vector<float> y(64);
    ops().fake_fp8(x.data(), 64, y.data());
    for (size_t b = 0; b < 64; b += 32) {
      float amax = 1e-4f;
      for (size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(x[i]));
      const float s = std::ldexp(1.0f, CeilLog2(amax * (1.0f / 448.0f)));
      for (size_t i = b; i < b + 32; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(E4M3ToFloat(FloatToE4M3(x[i] / s)) * s)) << seed;
    }
    ops().fake_fp4_pow2(x.data(), 64, y.data());
    for (size_t b = 0; b < 64; b += 32) {
      float amax = 0x1.8p-124f;
      for (size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(x[i]));
      const float s = std::ldexp(1.0f, CeilLog2(amax * (1.0f / 6.0f)));
      for (size_t i = b; i < b + 32; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(E2M1ToFloat(FloatToE2M1(x[i] / s)) * s)) << seed;
    }
    ops().fake_fp4_e4m3(x.data(), 64, y.data());
    for (size_t b = 0; b < 64; b += 16) {
      float amax = 0x1.8p-7f;
      for (size_t i = b; i < b + 16; ++i) amax = std::max(amax, std::fabs(x[i]));
      const float s = E4M3ToFloat(FloatToE4M3(amax / 6.0f));
      for (size_t i = b; i < b + 16; ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(E2M1ToFloat(FloatToE2M1(x[i] / s)) * s)) << seed;
    }
  }
}

TEST_P(RowOpsTest, DecodesEveryCode) {
  std::vector<uint8_t> data(256), scale(16, 129);
  for (size_t i = 0; i < 256; ++i) data[i] = static_cast<uint8_t>(i);
  std::vector<float> out(256);
  ops().decode_key(KeyFormat::kMxFp8, data.data(), scale.data(), 256, out.data());
  for (size_t i = 0; i < 256; ++i) {
    if ((i & 0x7f) == 0x7f) continue;  // NaN is never cached
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(E4M3ToFloat(data[i]) * 4.0f)) << i;
  }
  out.resize(512);
  std::vector<uint8_t> fp4_scale(32);
  for (size_t i = 0; i < 32; ++i) fp4_scale[i] = static_cast<uint8_t>(3 * i + 1);
  ops().decode_key(KeyFormat::kFp4E4m3, data.data(), fp4_scale.data(), 512, out.data());
  for (size_t i = 0; i < 512; ++i) {
    const float expected = E2M1ToFloat(static_cast<uint8_t>(data[i / 2] >> (4 * (i % 2)))) * E4M3ToFloat(fp4_scale[i / 16]);
    EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected)) << i;
  }
  ops().decode_key(KeyFormat::kFp4Pow2, data.data(), scale.data(), 512, out.data());
  for (size_t i = 0; i < 512; ++i)
    EXPECT_EQ(out[i], E2M1ToFloat(static_cast<uint8_t>(data[i / 2] >> (4 * (i % 2)))) * 4.0f) << i;
}

TEST_P(RowOpsTest, RecordsHoldRoundedValuesExactly) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const auto x = Random(512, std::ldexp(1.0f, static_cast<int>(seed % 20) - 14), seed);
    std::vector<float> y(512), back(512);
    std::vector<uint8_t> data(2048), scale(64);
    for (const KeyFormat format : {KeyFormat::kMxFp8, KeyFormat::kFp4E4m3, KeyFormat::kFp4Pow2, KeyFormat::kFloat}) {
      if (format == KeyFormat::kMxFp8) ops().fake_fp8(x.data(), 512, y.data());
      if (format == KeyFormat::kFp4E4m3) ops().fake_fp4_e4m3(x.data(), 512, y.data());
      if (format == KeyFormat::kFp4Pow2) ops().fake_fp4_pow2(x.data(), 512, y.data());
      if (format == KeyFormat::kFloat) y = x;
      const float* from = format == KeyFormat::kFp4E4m3 ? x.data() : y.data();  // row_ops.h
      ops().encode_key(format, from, 512, data.data(), scale.data());
      ops().decode_key(format, data.data(), scale.data(), 512, back.data());
      ASSERT_EQ(std::memcmp(y.data(), back.data(), 512 * sizeof(float)), 0) << seed << " " << static_cast<int>(format);
    }
  }
}

TEST_P(RowOpsTest, SwigluMicroVector) {
  const float gate[] = {12, -2}, up[] = {-11, 4};
  float out[2];
  ops().swiglu(gate, up, 1, 10, 1.0f, false, out);
  EXPECT_NEAR(out[0], -99.995460f, 1e-4f);
  ops().swiglu(gate + 1, up + 1, 1, 10, 0.3f, false, out + 1);
  EXPECT_NEAR(out[1], -0.28608701f, 1e-6f);
}

TEST_P(RowOpsTest, ReductionsAreCloseToDouble) {
  for (const int64_t n : {1, 7, 16, 31, 96, 257}) {
    const auto x = Random(static_cast<size_t>(n), 1, 5), w = Random(static_cast<size_t>(n), 1, 6), y = Random(static_cast<size_t>(n), 1, 7);
    double square = 0, dot = 0, dot3 = 0;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      square += static_cast<double>(x[i]) * x[i];
      dot += static_cast<double>(x[i]) * y[i];
      dot3 += static_cast<double>(x[i]) * w[i] * y[i];
    }
    EXPECT_NEAR(ops().sum_squares(x.data(), n), square, 1e-4);
    EXPECT_NEAR(ops().dot(x.data(), y.data(), n), dot, 1e-4);
    EXPECT_NEAR(ops().dot3(x.data(), w.data(), y.data(), n), dot3, 1e-4);
  }
}

// The promise of row_ops.h: the same bits on every instruction set.
TEST_P(RowOpsTest, SameBitsAsTheScalarTable) {
  const RowOps& scalar = RowOpsFor(CpuIsa::kScalar);
  for (const int64_t h : {int64_t{32}, int64_t{96}, int64_t{256}, int64_t{480}}) {
    const size_t n = static_cast<size_t>(h);
    const auto x = Random(4 * n, 1, 1), w = Random(n, 1, 2), y = Random(n, 1, 3), fn = Random(24 * 4 * n, 1, 4);
    const float pre[] = {0.3f, 0.2f, 0.7f, 0.1f};
    float comb[16];
    for (int i = 0; i < 16; ++i) comb[i] = 0.05f * static_cast<float>(i) + 0.01f;
    for (const bool round : {false, true}) {
      std::vector<float> a(4 * n), b(4 * n);
      const auto same = [&](const char* what) { EXPECT_EQ(std::memcmp(a.data(), b.data(), 4 * n * sizeof(float)), 0) << what; };
      scalar.rms_norm(x.data(), w.data(), h, 1e-20f, round, a.data());
      ops().rms_norm(x.data(), w.data(), h, 1e-20f, round, b.data());
      same("rms_norm");
      scalar.collapse(x.data(), pre, 4, h, round, a.data());
      ops().collapse(x.data(), pre, 4, h, round, b.data());
      same("collapse");
      a = b = x;
      scalar.expand(y.data(), pre, comb, 4, h, round, a.data());
      ops().expand(y.data(), pre, comb, 4, h, round, b.data());
      same("expand");
      scalar.stream_mean(x.data(), 4, h, round, a.data());
      ops().stream_mean(x.data(), 4, h, round, b.data());
      same("stream_mean");
      scalar.rotate(a.data(), 32, w.data(), y.data(), true, round);
      ops().rotate(b.data(), 32, w.data(), y.data(), true, round);
      same("rotate");
      scalar.swiglu(x.data(), x.data() + n, h, 2.5f, 0.7f, round, a.data());
      ops().swiglu(x.data(), x.data() + n, h, 2.5f, 0.7f, round, b.data());
      same("swiglu");
      scalar.add_scaled(y.data(), 0.3f, h, round, a.data());
      ops().add_scaled(y.data(), 0.3f, h, round, b.data());
      same("add_scaled");
    }
    float g[24], k[24];
    scalar.dots(x.data(), fn.data(), 4 * h, 24, g);
    ops().dots(x.data(), fn.data(), 4 * h, 24, k);
    EXPECT_EQ(std::memcmp(g, k, sizeof(g)), 0);
    EXPECT_EQ(ops().sum_squares(x.data(), 4 * h), scalar.sum_squares(x.data(), 4 * h));
    EXPECT_EQ(ops().dot3(x.data(), w.data(), y.data(), h), scalar.dot3(x.data(), w.data(), y.data(), h));
  }
}

}  // namespace
}  // namespace deepinfer::cpu
