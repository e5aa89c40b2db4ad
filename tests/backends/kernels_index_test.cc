// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/kernels/index.h"
#include "core/cpu_features.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

struct Keys {
  std::vector<uint8_t> data, scales;
  std::vector<float> values;
};

Keys MakeKeys(int n, int dim, uint32_t seed) {
  std::mt19937 rng(seed);
  Keys k;
  for (int i = 0; i < n * dim / 2; ++i) k.data.push_back(static_cast<uint8_t>(rng()));
  for (int i = 0; i < n * dim / 32; ++i) k.scales.push_back(static_cast<uint8_t>(124 + rng() % 5));
  for (int i = 0; i < n * dim; ++i) {
    const uint8_t byte = k.data[static_cast<size_t>(i / 2)];
    k.values.push_back(E2M1ToFloat(static_cast<uint8_t>(i & 1 ? byte >> 4 : byte & 15)) *
                       E8M0ToFloat(k.scales[static_cast<size_t>(i / 32)]));
  }
  return k;
}

TEST(IndexScorer, EveryLevelGivesTheSameBitsAndTheRightSum) {
  for (const auto& [heads, dim] : {std::pair{32, 128}, std::pair{16, 32}, std::pair{4, 32}, std::pair{17, 64}}) {
    const int n = 133;
    const Keys query = MakeKeys(heads, dim, 1);
    const Keys keys = MakeKeys(n, dim, 2);
    std::vector<float> weights;
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (int h = 0; h < heads; ++h) weights.push_back(RoundToBf16(normal(rng)));
    IndexScorer q;
    q.Prepare(query.values.data(), weights.data(), heads, dim, true);
    std::vector<float> first(static_cast<size_t>(n));
    for (CpuIsa level : SupportedCpuIsas()) {
      const ScopedCpuIsa isa(level);
      std::vector<float> scores(static_cast<size_t>(n), NAN);
      q.ScoreFp4(keys.data.data(), keys.scales.data(), n, scores.data());
      if (level == CpuIsa::kScalar) first = scores;
      ASSERT_EQ(std::memcmp(first.data(), scores.data(), scores.size() * sizeof(float)), 0) << CpuIsaName(level);
    }
    for (int i = 0; i < n; ++i) {
      double sum = 0, norm = 0;
      for (int h = 0; h < heads; ++h) {
        double dot = 0;
        for (int d = 0; d < dim; ++d) {
          dot += double{query.values[static_cast<size_t>(h * dim + d)]} * double{keys.values[static_cast<size_t>(i * dim + d)]};
        }
        sum += double{weights[static_cast<size_t>(h)]} * std::max(dot, 0.0);
        norm += std::fabs(double{weights[static_cast<size_t>(h)]} * std::max(dot, 0.0));
      }
      ASSERT_NEAR(first[static_cast<size_t>(i)], sum, 1e-6 * norm);
    }
    // Float keys give the same dot products.
    IndexScorer f;
    f.Prepare(query.values.data(), weights.data(), heads, dim, false);
    for (CpuIsa level : SupportedCpuIsas()) {
      const ScopedCpuIsa isa(level);
      std::vector<float> scores(static_cast<size_t>(n), NAN);
      f.ScoreFloat(keys.values.data(), n, scores.data());
      for (size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(scores[i], first[i], 1e-4 + 1e-5 * std::fabs(first[i]));
    }
  }
}

TEST(IndexScorer, ZeroAndTinyBlocksAreExact) {
  std::vector<float> query(64, 0.0f);
  for (size_t i = 32; i < 64; ++i) query[i] = std::ldexp(3.0f, -100);
  const float weight = 1.0f;
  IndexScorer q;
  q.Prepare(query.data(), &weight, 1, 64, true);
  const std::vector<uint8_t> data(32, 0x22);
  const uint8_t scales[2] = {127, 127};
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    float score = -1;
    q.ScoreFp4(data.data(), scales, 1, &score);
    EXPECT_EQ(score, std::ldexp(96.0f, -100));
  }
}

std::vector<int32_t> SlowTopK(const std::vector<float>& scores, int k) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > -std::numeric_limits<float>::infinity()) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  if (static_cast<int>(order.size()) > k) order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectTopK, MatchesAStableSort) {
  std::mt19937 rng(5);
  for (int round = 0; round < 400; ++round) {
    const int n = static_cast<int>(rng() % 700);
    std::vector<float> scores;
    for (int i = 0; i < n; ++i) {
      switch (round % 4) {
        case 0:
          scores.push_back(static_cast<float>(rng() % 7) - 3.0f);  // many ties
          break;
        case 1:
          scores.push_back(std::ldexp(static_cast<float>(rng()) - 2147483648.0f, static_cast<int>(rng() % 40) - 50));
          break;
        case 2:
          scores.push_back(rng() % 2 ? 0.0f : -0.0f);
          break;
        default:
          scores.push_back(rng() % 3 == 0 ? -std::numeric_limits<float>::infinity()
                                          : 1.0f + static_cast<float>(rng() % 5) * 1.2e-7f);
          break;
      }
      if (rng() % 50 == 0) scores.back() = std::numeric_limits<float>::infinity();
    }
    for (int k : {0, 1, 2, 16, 512, 700}) {
      std::vector<int32_t> out(static_cast<size_t>(std::max(k, 1)));
      const int count = SelectTopK(scores.data(), n, k, out.data());
      out.resize(static_cast<size_t>(count));
      ASSERT_EQ(out, SlowTopK(scores, k)) << "n " << n << " k " << k << " round " << round;
    }
  }
}

// Enough scores for the short list; ties that overflow it; few finite ones.
TEST(SelectTopK, ManyScoresMatchAStableSort) {
  std::mt19937 rng(7);
  for (const int n : {16384, 16399, 40000}) {
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<float> scores(static_cast<size_t>(n), kind == 3 ? -std::numeric_limits<float>::infinity() : 0.0f);
      for (int i = 0; i < n; ++i) {
        float& s = scores[static_cast<size_t>(i)];
        if (kind == 0) s = static_cast<float>(rng()) - 2147483648.0f;
        if (kind == 1) s = static_cast<float>(rng() % 3);                    // most of them tie
        if (kind == 2) s = -static_cast<float>(i / 4);                       // all at one end
        if (kind == 3 && i / 8 % 50 == 3) s = static_cast<float>(rng() % 100);
        if (kind == 4) s = i % 16 == 5 ? 1.0f + static_cast<float>(rng() % 4) : -1.0f;
      }
      for (int k : {1, 100, 512}) {
        std::vector<int32_t> out(static_cast<size_t>(k));
        out.resize(static_cast<size_t>(SelectTopK(scores.data(), n, k, out.data())));
        ASSERT_EQ(out, SlowTopK(scores, k)) << "n " << n << " kind " << kind << " k " << k;
      }
    }
  }
}

TEST(BlockMaxima, EveryBlockOfEight) {
  std::mt19937 rng(9);
  std::vector<float> scores(8 * 21 + 3);
  for (float& s : scores) s = static_cast<float>(rng() % 1000) - 500.0f;
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    std::vector<float> maxima(22);
    BlockMaxima(scores.data(), static_cast<int>(scores.size()), 8, maxima.data());
    for (size_t b = 0; b < 21; ++b) {
      EXPECT_EQ(maxima[b], *std::max_element(scores.begin() + static_cast<int64_t>(b) * 8, scores.begin() + static_cast<int64_t>(b) * 8 + 8));
    }
  }
}

TEST(BlockMaxima, LastBlockIsPinned) {
  const std::vector<float> scores = {1, 5, 2, -3, -4, -2, 7};
  float maxima[3];
  BlockMaxima(scores.data(), 7, 3, maxima);
  EXPECT_EQ(maxima[0], 5);
  EXPECT_EQ(maxima[1], -2);
  EXPECT_TRUE(std::isinf(maxima[2]));
}

}  // namespace
}  // namespace deepinfer::cpu
