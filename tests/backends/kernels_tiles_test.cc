// SPDX-License-Identifier: Apache-2.0
//
// The tile kernels driven by a model of the tile unit, so that they are tested on any machine.
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/kernels/matmul_tiles.h"
#include "backends/cpu/kernels/tile_model.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

// BF16 weights in the packed layout: [group][16 pairs][32 rows].
struct PlainWeights {
  static constexpr bool kIsDecoded = false;
  const uint32_t* data;
  static const uint32_t* Inputs(const TileTask& task) { return task.pairs; }
  explicit PlainWeights(const TileTask& task) : data(reinterpret_cast<const uint32_t*>(task.weights)) {}
  const uint32_t* Group(int64_t group) const { return data + group * 512; }
};
// The same by way of a decoded panel.
struct CopiedWeights : PlainWeights {
  static constexpr bool kIsDecoded = true;
  using PlainWeights::PlainWeights;
  void Decode(int64_t group, uint32_t* panel) const { std::memcpy(panel, Group(group), 2048); }
};

float Half(uint32_t pair, int i) { return std::bit_cast<float>(i == 0 ? pair << 16 : pair & 0xffff0000u); }

struct Case {
  static constexpr int kGroups = 11, kInputs = 70;
  std::vector<uint32_t> weights, pairs;
  std::vector<int32_t> rows;

  explicit Case(bool is_shuffled) : weights(kGroups * 512), pairs((kGroups * kInputs + 16) * 16) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    const auto pair = [&] { return uint32_t{FloatToBf16(normal(rng))} | uint32_t{FloatToBf16(normal(rng))} << 16; };
    for (uint32_t& w : weights) w = pair();
    for (uint32_t& x : pairs) x = pair();
    for (int m = 0; m < 64; ++m) rows.push_back(is_shuffled ? (m * 29 + 3) % kInputs : m + 2);
  }
  template <typename Weights>
  std::vector<float> Multiply(int num_m) const {
    TileTask task{};
    task.weights = reinterpret_cast<const uint8_t*>(weights.data());
    task.num_groups = kGroups;
    task.pairs = pairs.data();
    task.group_rows = kInputs;
    task.row_idx = rows.data();
    task.num_m = num_m;
    std::vector<float> out(kMaxTileM * 32, NAN);
    task.out = out.data();
    TileModel unit;
    MultiplyTiles<Weights>(unit, task);
    return out;
  }
};

TEST(Tiles, ProductsFollowTheOrderOfSums) {
  for (const bool is_shuffled : {false, true}) {
    const Case c(is_shuffled);
    const std::vector<float> out = c.Multiply<PlainWeights>(40);
    for (int m = 0; m < 40; ++m) {
      for (int row = 0; row < 32; ++row) {
        float sum = 0;
        for (int g = 0; g < Case::kGroups; ++g) {
          float part[2] = {};
          for (int k = 0; k < 16; ++k) {
            const uint32_t w = c.weights[static_cast<size_t>(g * 512 + k * 32 + row)];
            const uint32_t x = c.pairs[static_cast<size_t>((g * Case::kInputs + c.rows[static_cast<size_t>(m)]) * 16 + k)];
            for (int i = 0; i < 2; ++i) part[i] = std::fma(Half(x, i), Half(w, i), part[i]);
          }
          sum += part[0] + part[1];
        }
        ASSERT_EQ(out[static_cast<size_t>(m * 32 + row)], sum) << m << " " << row;
      }
    }
  }
}

TEST(Tiles, SameBitsForAnyNumberOfInputs) {
  for (const bool is_shuffled : {false, true}) {
    const Case c(is_shuffled);
    const std::vector<float> all = c.Multiply<PlainWeights>(64);
    for (const int num_m : {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64}) {
      const std::vector<float> few = c.Multiply<CopiedWeights>(num_m);
      for (int i = 0; i < num_m * 32; ++i) ASSERT_EQ(few[static_cast<size_t>(i)], all[static_cast<size_t>(i)]) << num_m << " " << i;
    }
  }
}

// Subnormal inputs and results count as zero; a subnormal output does not survive an addition.
TEST(Tiles, TheModelFlushesSubnormals) {
  TileModel unit;
  unit.Configure(16);
  uint32_t a[16][16] = {}, b[16][16] = {};
  float c[16][16] = {};
  a[0][0] = 0x00400040u;                                     // two subnormals
  a[1][0] = FloatToBf16(0x1p-100f) | uint32_t{FloatToBf16(1.0f)} << 16;
  b[0][3] = FloatToBf16(0x1p-40f) | uint32_t{FloatToBf16(3.0f)} << 16;
  c[0][3] = 1e-40f;
  unit.Load<0>(c, 64);
  unit.Load<4>(a, 64);
  unit.Load<6>(b, 64);
  unit.DotBf16<0, 4, 6>();
  unit.Store<0>(c, 64);
  EXPECT_EQ(c[0][3], 0.0f);
  EXPECT_EQ(c[1][3], 3.0f);
}

}  // namespace
}  // namespace deepinfer::cpu
