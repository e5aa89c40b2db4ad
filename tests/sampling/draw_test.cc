// SPDX-License-Identifier: Apache-2.0
#include "sampling/draw.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdef0;

std::vector<uint32_t> HalvingWeights() {
  std::vector<uint32_t> weights;
  for (const double p : {.5, .25, .125, .0625, .03125, .015625, .0078125, .0078125}) {
    weights.push_back(static_cast<uint32_t>(p * 2147483648.0));
  }
  return weights;
}

std::vector<uint32_t> SpreadWeights() {
  std::vector<uint32_t> weights(10000);
  for (uint64_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<uint32_t>(i * 2654435761u % 200003);
  return weights;
}

std::vector<int32_t> Draws(const std::vector<uint32_t>& weights, int num_positions, bool is_race) {
  DrawWorkspace workspace;
  std::vector<int32_t> draws;
  for (int32_t position = 0; position < num_positions; ++position) {
    const PhiloxStream stream(kSeed, position, DrawCase::kTarget);
    draws.push_back(is_race ? DrawRace(weights, stream, workspace) : DrawInverseCdf(weights, stream, workspace));
  }
  return draws;
}

TEST(Draw, NumLanes) {
  EXPECT_EQ(NumLanes(1), 1);
  EXPECT_EQ(NumLanes(8), 8);
  EXPECT_EQ(NumLanes(9), 16);
  EXPECT_EQ(NumLanes(8191), 8192);
  EXPECT_EQ(NumLanes(8192), 2048);
  EXPECT_EQ(NumLanes(129280), 2048);
}

TEST(Draw, InverseCdfVectors) {
  EXPECT_EQ(Draws(HalvingWeights(), 24, false),
            (std::vector<int32_t>{0, 5, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 2, 0, 7}));
  EXPECT_EQ(Draws(SpreadWeights(), 8, false),
            (std::vector<int32_t>{6448, 4255, 8096, 6333, 8011, 4499, 1710, 5290}));
}

TEST(Draw, RaceVectors) {
  EXPECT_EQ(Draws(HalvingWeights(), 24, true),
            (std::vector<int32_t>{2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 1, 1, 2, 0, 0, 0, 1, 1, 6, 1, 0}));
  EXPECT_EQ(Draws(SpreadWeights(), 8, true),
            (std::vector<int32_t>{9396, 9424, 7599, 9888, 362, 9393, 4522, 8143}));
  EXPECT_EQ(Draws(std::vector<uint32_t>(129280, 16611), 8, true),
            (std::vector<int32_t>{18247, 99470, 14962, 9888, 43664, 50979, 101316, 23582}));
}

TEST(Draw, ExponentialVectors) {
  EXPECT_EQ(ExponentialFromWord(0), 22.8738575f);
  EXPECT_EQ(ExponentialFromWord(0x7fffffff), 0.693147182f);
  EXPECT_EQ(ExponentialFromWord(0x80000000), 0.693147182f);
  EXPECT_EQ(ExponentialFromWord(0xffffffff), 1.16415322e-10f);
}

TEST(Draw, SparseAndDenseRacesAgree) {
  // The same few weights among zeros, and the best of them found by brute force over the dense keys.
  std::vector<uint32_t> sparse(5000);
  for (size_t i = 0; i < sparse.size(); i += 97) sparse[i] = static_cast<uint32_t>(1 + i * 31);
  DrawWorkspace workspace;
  for (int32_t position = 0; position < 50; ++position) {
    const PhiloxStream stream(kSeed, position, DrawCase::kTarget);
    int32_t best = -1;
    float best_key = 0;
    for (size_t i = 0; i < sparse.size(); ++i) {
      if (sparse[i] == 0) continue;
      const uint32_t word = stream.Block(static_cast<uint32_t>(i / 4))[i % 4];
      const float key = ExponentialFromWord(word) / static_cast<float>(sparse[i]);
      if (best < 0 || key < best_key) {
        best = static_cast<int32_t>(i);
        best_key = key;
      }
    }
    EXPECT_EQ(DrawRace(sparse, stream, workspace), best);
  }
}

// The definition, with the weights cut into pieces that threads add up in any order: lane sums of the inverse CDF, the best
// key of the race. T7 of engine.md 23.
int32_t DrawInPieces(const std::vector<uint32_t>& weights, PhiloxStream stream, bool is_race, size_t piece, int num_threads) {
  const int lanes = NumLanes(static_cast<int>(weights.size()));
  const size_t num_pieces = (weights.size() + piece - 1) / piece;
  std::vector<std::vector<uint64_t>> sums(static_cast<size_t>(num_threads), std::vector<uint64_t>(static_cast<size_t>(lanes)));
  std::vector<std::pair<float, size_t>> best(static_cast<size_t>(num_threads), {INFINITY, weights.size()});
  std::vector<std::thread> threads;
  for (size_t t = 0; t < static_cast<size_t>(num_threads); ++t) {
    threads.emplace_back([&, t] {
      for (size_t p = num_pieces; p-- > 0;) {
        if (p % static_cast<size_t>(num_threads) != t) continue;
        for (size_t c = p * piece; c < std::min(weights.size(), (p + 1) * piece); ++c) {
          sums[t][c % static_cast<size_t>(lanes)] += weights[c];
          if (weights[c] == 0) continue;
          const float key = ExponentialFromWord(stream.Block(static_cast<uint32_t>(c / 4))[c % 4]) / static_cast<float>(weights[c]);
          best[t] = std::min(best[t], {key, c});
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (is_race) return static_cast<int32_t>(std::min_element(best.begin(), best.end())->second);
  std::vector<uint64_t> lane_sums(static_cast<size_t>(lanes));
  uint64_t total = 0;
  for (const auto& part : sums) {
    for (size_t k = 0; k < part.size(); ++k) lane_sums[k] += part[k], total += part[k];
  }
  const uint64_t limit = 0xffffffffu / total * total;
  uint64_t word = stream.Next();
  while (word >= limit) word = stream.Next();
  uint64_t rest = word % total;
  size_t lane = 0;
  while (lane_sums[lane] <= rest) rest -= lane_sums[lane++];
  size_t column = lane;
  while (weights[column] <= rest) rest -= weights[column], column += static_cast<size_t>(lanes);
  return static_cast<int32_t>(column);
}

TEST(Draw, IndependentOfThreadsAndChunks) {
  std::vector<uint32_t> tied(5000, 400'000), ragged(3001);
  for (size_t i = 0; i < ragged.size(); ++i) ragged[i] = i % 3 == 0 ? 0 : static_cast<uint32_t>(i * 2654435761u % 1'000'003);
  DrawWorkspace workspace;
  for (const std::vector<uint32_t>& weights : {HalvingWeights(), SpreadWeights(), tied, ragged}) {
    for (int32_t position = 0; position < 12; ++position) {
      const PhiloxStream stream(kSeed, position, DrawCase::kTarget);
      const int32_t race = DrawRace(weights, stream, workspace), cdf = DrawInverseCdf(weights, stream, workspace);
      for (const int num_threads : {1, 2, 4}) {
        for (const size_t piece : {size_t{1}, size_t{7}, size_t{256}, size_t{4096}, weights.size()}) {
          ASSERT_EQ(DrawInPieces(weights, stream, true, piece, num_threads), race) << position << ", " << num_threads << " threads, pieces of " << piece;
          ASSERT_EQ(DrawInPieces(weights, stream, false, piece, num_threads), cdf) << position << ", " << num_threads << " threads, pieces of " << piece;
        }
      }
    }
  }
}

TEST(Draw, NothingToDraw) {
  DrawWorkspace workspace;
  const std::vector<uint32_t> zeros(100);
  const PhiloxStream stream(kSeed, 0, DrawCase::kTarget);
  EXPECT_EQ(DrawInverseCdf(zeros, stream, workspace), -1);
  EXPECT_EQ(DrawRace(zeros, stream, workspace), -1);
}

// Chi-square of 200,000 draws from 16 weights; 15 degrees of freedom, p = 0.001 at 37.7. The seed is fixed.
TEST(Draw, BothDrawsFollowTheWeights) {
  std::vector<uint32_t> weights;
  double total = 0;
  for (int i = 0; i < 16; ++i) {
    weights.push_back(i == 5 ? 0u : static_cast<uint32_t>(1u << 26) * static_cast<uint32_t>(1 + i % 7));
    total += weights.back();
  }
  constexpr int kDraws = 200000;
  DrawWorkspace workspace;
  for (const bool is_race : {false, true}) {
    std::vector<int> counts(16);
    for (int32_t position = 0; position < kDraws; ++position) {
      const PhiloxStream stream(99, position, DrawCase::kTarget);
      const int32_t id = is_race ? DrawRace(weights, stream, workspace) : DrawInverseCdf(weights, stream, workspace);
      ASSERT_GE(id, 0);
      ++counts[static_cast<size_t>(id)];
    }
    EXPECT_EQ(counts[5], 0);
    double chi_square = 0;
    for (size_t i = 0; i < 16; ++i) {
      if (weights[i] == 0) continue;
      const double expected = static_cast<double>(kDraws) * weights[i] / total;
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 37.7) << (is_race ? "race" : "inverse CDF");
  }
}

}  // namespace
}  // namespace deepinfer::sampling
