// SPDX-License-Identifier: Apache-2.0
//
// The elementary functions against double precision, and every instruction set against the scalar loops, bit for bit.
#include "sampling/row_ops.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "sampling/draw.h"

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double Ulp(double value) {
  const double magnitude = std::fabs(value);
  if (magnitude < 0x1p-126) return 0x1p-149;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  return std::ldexp(1.0, exponent - 24);
}

// Steps through the bit patterns of [first, last] with a stride that keeps the test short; the bounds in
// elementary-inl.h come from a run over every seventh float.
template <typename F>
void ForFloats(float first, float last, F f) {
  const uint32_t begin = std::bit_cast<uint32_t>(first);
  const uint32_t end = std::bit_cast<uint32_t>(last);
  for (uint64_t bits = begin; bits <= end; bits += 4999) f(std::bit_cast<float>(static_cast<uint32_t>(bits)));
}

TEST(Elementary, ExpIsWithin1p1Ulp) {
  const RowOps& ops = GetRowOps();
  for (const float sign : {-1.0f, 1.0f}) {
    ForFloats(1e-30f, sign < 0 ? 104.0f : 88.7f, [&](float magnitude) {
      const double x = sign * magnitude;
      const double want = std::exp(x);
      ASSERT_LE(std::fabs(ops.exp(static_cast<float>(x)) - want), 1.1 * Ulp(want)) << x;
    });
  }
  EXPECT_EQ(ops.exp(0.0f), 1.0f);
  EXPECT_EQ(ops.exp(-kInfinity), 0.0f);
  EXPECT_EQ(ops.exp(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(ops.exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Elementary, LogIsWithin1p2Ulp) {
  const RowOps& ops = GetRowOps();
  ForFloats(0x1p-126f, 3e38f, [&](float x) {
    const double want = std::log(static_cast<double>(x));
    if (want == 0) return;
    ASSERT_LE(std::fabs(ops.log(x) - want), 1.2 * Ulp(want)) << x;
  });
  EXPECT_EQ(ops.log(1.0f), 0.0f);
}

TEST(Elementary, ExponentialIsAccurateAtBothEnds) {
  const RowOps& ops = GetRowOps();
  for (uint64_t i = 0; i < 40000; ++i) {
    const uint32_t word = static_cast<uint32_t>(i < 1000 ? i : i < 2000 ? 0xffffffffu - (i - 1000) : i * 107374u);
    const double want = -std::log((2.0 * word + 1.0) * 0x1p-33);
    // 2 ulp of the result plus the rounding of the uniform to float32.
    ASSERT_NEAR(ops.exponential(word) / want, 1.0, 3e-7) << word;
  }
}

class RowOpsBits : public ::testing::TestWithParam<int> {};

std::vector<float> RandomRow(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = normal(rng);
  for (size_t i = 3; i < row.size(); i += 17) row[i] = -kInfinity;
  return row;
}

TEST_P(RowOpsBits, EveryInstructionSetGivesTheSameBits) {
  const int n = GetParam();
  const RowOps& scalar = *AllRowOps()[0];
  const int num_lanes = NumLanes(n);
  const std::vector<float> row = RandomRow(n, 7);
  const std::vector<float> other = RandomRow(n, 8);
  const size_t size = row.size();
  const uint32_t stream[4] = {0x9abcdef0, 0x12345678, 51, 0};
  struct Out {
    std::vector<float> logprobs, probs, kept_probs, kept_logprobs, residual, keys, keys_of;
    std::vector<uint32_t> weights, prob_weights, residual_weights, sums;
    float numbers[5];
    int32_t max_key;
    int64_t found;
  };
  const auto run = [&](const RowOps& ops) {
    Out o;
    std::vector<float> lanes(static_cast<size_t>(num_lanes));
    o.max_key = ops.max_key(row.data(), n);
    const float max = std::bit_cast<float>(o.max_key ^ ((o.max_key >> 31) & 0x7fffffff));
    o.found = ops.find_equal(row.data(), n, max);
    o.numbers[0] = ops.sum_exp(row.data(), n, max, 0.7f, lanes.data(), num_lanes);
    o.numbers[1] = ops.log(o.numbers[0]);
    o.logprobs.resize(size);
    o.probs.resize(size);
    ops.log_probs(row.data(), n, max, 0.7f, o.numbers[1], o.logprobs.data(), o.probs.data());
    o.weights.resize(size);
    o.prob_weights.resize(size);
    ops.weights(o.logprobs.data(), n, o.weights.data());
    ops.weights_from_probs(o.probs.data(), n, o.prob_weights.data());
    o.sums.resize(static_cast<size_t>(num_lanes));
    ops.sum_lanes(o.weights.data(), n, o.sums.data(), num_lanes);
    o.kept_probs = o.probs;
    o.kept_logprobs = o.logprobs;
    o.numbers[2] = ops.keep(o.kept_probs.data(), o.kept_logprobs.data(), n, o.probs[size / 2], n / 2, 1e-6f,
                            lanes.data(), num_lanes);
    ops.subtract(o.kept_logprobs.data(), n, -0.25f);
    o.numbers[3] = ops.sum_smaller(o.logprobs.data(), n, o.logprobs[size / 2], n / 2, lanes.data(), num_lanes);
    o.residual.resize(size);
    o.residual_weights.resize(size);
    o.numbers[4] = ops.residual(o.logprobs.data(), other.data(), n, o.residual.data(), o.residual_weights.data(),
                                lanes.data(), num_lanes);
    o.keys.resize(size);
    ops.race_keys(o.weights.data(), 0, n, stream, o.keys.data());
    std::vector<int32_t> ids(size);
    for (size_t i = 0; i < size; ++i) ids[i] = static_cast<int32_t>(i);
    o.keys_of.resize(size);
    ops.race_keys_of(o.weights.data(), ids.data(), n, stream, o.keys_of.data());
    return o;
  };
  const auto bits = [](const std::vector<float>& v) {
    std::vector<uint32_t> b;
    for (const float x : v) b.push_back(std::bit_cast<uint32_t>(x));
    return b;
  };
  const Out want = run(scalar);
  EXPECT_EQ(bits(want.keys), bits(want.keys_of));
  for (const RowOps* ops : AllRowOps()) {
    const Out got = run(*ops);
    EXPECT_EQ(got.max_key, want.max_key) << ops->name;
    EXPECT_EQ(got.found, want.found) << ops->name;
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(got.numbers[i]), std::bit_cast<uint32_t>(want.numbers[i])) << ops->name << i;
    }
    EXPECT_EQ(bits(got.logprobs), bits(want.logprobs)) << ops->name;
    EXPECT_EQ(bits(got.probs), bits(want.probs)) << ops->name;
    EXPECT_EQ(bits(got.kept_probs), bits(want.kept_probs)) << ops->name;
    EXPECT_EQ(bits(got.kept_logprobs), bits(want.kept_logprobs)) << ops->name;
    EXPECT_EQ(bits(got.residual), bits(want.residual)) << ops->name;
    EXPECT_EQ(bits(got.keys), bits(want.keys)) << ops->name;
    EXPECT_EQ(bits(got.keys_of), bits(want.keys_of)) << ops->name;
    EXPECT_EQ(got.weights, want.weights) << ops->name;
    EXPECT_EQ(got.prob_weights, want.prob_weights) << ops->name;
    EXPECT_EQ(got.residual_weights, want.residual_weights) << ops->name;
    EXPECT_EQ(got.sums, want.sums) << ops->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RowOpsBits, ::testing::Values(1, 2, 7, 8, 31, 33, 257, 1000, 4096, 8192, 10007));

TEST(RowOps, LaneSumIsTheDocumentedOrder) {
  const int n = 20;
  const int num_lanes = NumLanes(n);  // 32: one element a lane
  std::vector<float> row = RandomRow(n, 3);
  const RowOps& ops = GetRowOps();
  std::vector<float> want(static_cast<size_t>(num_lanes), 0.0f);
  for (size_t i = 0; i < row.size(); ++i) want[i] += ops.exp((row[i] - 1.5f) * 0.5f);
  for (int half = num_lanes / 2; half >= 1; half /= 2) {
    for (int k = 0; k < half; ++k) want[static_cast<size_t>(k)] += want[static_cast<size_t>(k + half)];
  }
  std::vector<float> lanes(static_cast<size_t>(num_lanes));
  EXPECT_EQ(ops.sum_exp(row.data(), n, 1.5f, 0.5f, lanes.data(), num_lanes), want[0]);
}

TEST(RowOps, MaxKeySeesNan) {
  std::vector<float> row(100, 1.0f);
  row[50] = std::numeric_limits<float>::quiet_NaN();
  for (const RowOps* ops : AllRowOps()) EXPECT_GT(ops->max_key(row.data(), 100), 0x7f800000) << ops->name;
}

}  // namespace
}  // namespace deepinfer::sampling
