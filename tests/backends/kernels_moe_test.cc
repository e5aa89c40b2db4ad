// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/kernels/moe.h"
#include "core/cpu_features.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

struct StoredMatrix {
  std::vector<uint8_t> data, scale;
  MatrixSource source;
};

StoredMatrix RandomStored(WeightFormat format, int64_t rows, int64_t cols, std::mt19937& rng) {
  StoredMatrix m;
  const bool fp4 = format == WeightFormat::kFp4Row32;
  m.data.resize(static_cast<size_t>(fp4 ? rows * cols / 2 : rows * cols));
  for (auto& b : m.data) {
    b = static_cast<uint8_t>(rng());
    if (!fp4) b = static_cast<uint8_t>((b & 0x80) | (b % 0x78));  // up to 240
  }
  m.scale.resize(static_cast<size_t>(fp4 ? rows * (cols / 32) : (rows + 31) / 32 * (cols / 32)));
  for (auto& b : m.scale) b = static_cast<uint8_t>((fp4 ? 121 : 115) + rng() % 3);
  m.source = {format, rows, cols, m.data.data(), m.scale.data()};
  return m;
}

struct Layer {
  int64_t hidden, width;
  std::vector<StoredMatrix> stored;
  std::vector<PackedMatrix> packed;
  std::vector<PackedMatrix> stacked;  // gate and up not interleaved, for the plain reference
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;

  Layer(int64_t num_experts, int64_t h, int64_t i, uint32_t seed) : hidden(h), width(i) {
    std::mt19937 rng(seed);
    for (int64_t e = 0; e <= num_experts; ++e) {
      const WeightFormat format = e == num_experts ? WeightFormat::kFp8Tile32 : WeightFormat::kFp4Row32;
      stored.push_back(RandomStored(format, i, h, rng));
      stored.push_back(RandomStored(format, i, h, rng));
      stored.push_back(RandomStored(format, h, i, rng));
      const size_t n = stored.size();
      const MatrixSource w13[] = {stored[n - 3].source, stored[n - 2].source};
      packed.push_back(PackedMatrix::Pack(w13, nullptr, true));
      packed.push_back(PackedMatrix::Pack({&stored[n - 1].source, 1}));
      stacked.push_back(PackedMatrix::Pack(w13));
    }
    for (size_t e = 0; e < static_cast<size_t>(num_experts); ++e) experts.push_back({&packed[2 * e], &packed[2 * e + 1]});
    shared = {&packed[packed.size() - 2], &packed[packed.size() - 1]};
  }

  // The same layer out of MatMul calls, one row and one expert at a time.
  std::vector<float> Reference(const std::vector<float>& x, int64_t rows, int k, const std::vector<int32_t>& chosen,
                               const std::vector<float>& weights, float limit, bool round, ActivationForm form) const {
    ThreadPool pool(1);
    const Rounding rounding = round ? Rounding::kBf16 : Rounding::kNone;
    std::vector<float> out(static_cast<size_t>(rows * hidden));
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<float> sum(static_cast<size_t>(hidden), 0.0f);
      PreparedActivations input;
      input.Prepare(pool, x.data() + t * hidden, 1, hidden, hidden, form);
      std::vector<std::pair<int, float>> order;
      for (int i = 0; i < k; ++i) {
        if (chosen[static_cast<size_t>(t * k + i)] >= 0) {
          order.emplace_back(chosen[static_cast<size_t>(t * k + i)], weights[static_cast<size_t>(t * k + i)]);
        }
      }
      std::sort(order.begin(), order.end());
      order.emplace_back(static_cast<int>(experts.size()), 1.0f);
      for (const auto& [e, weight] : order) {
        std::vector<float> gu(static_cast<size_t>(2 * width)), act(static_cast<size_t>(width)),
            y(static_cast<size_t>(hidden));
        MatMul(pool, input, stacked[static_cast<size_t>(e)], gu.data(), 2 * width, rounding);
        for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
          float g = gu[i], u = gu[static_cast<size_t>(width) + i];
          if (limit > 0) {
            g = std::min(g, limit);
            u = std::clamp(u, -limit, limit);
          }
          act[i] = weight * (g / (1.0f + std::exp(-g)) * u);
          if (round) act[i] = RoundToBf16(act[i]);
        }
        PreparedActivations prepared;
        prepared.Prepare(pool, act.data(), 1, width, width, form);
        MatMul(pool, prepared, packed[static_cast<size_t>(2 * e + 1)], y.data(), hidden, rounding);
        for (size_t c = 0; c < static_cast<size_t>(hidden); ++c) sum[c] += y[c];
      }
      for (size_t c = 0; c < static_cast<size_t>(hidden); ++c) {
        out[static_cast<size_t>(t * hidden) + c] = round ? RoundToBf16(sum[c]) : sum[c];
      }
    }
    return out;
  }
};

struct Batch {
  std::vector<float> x, weights;
  std::vector<int32_t> chosen;
};

// Routing with experts that get no row, one row and many rows.
Batch MakeBatch(int64_t rows, int64_t hidden, int num_experts, int k, uint32_t seed, bool bf16) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Batch b;
  for (int64_t i = 0; i < rows * hidden; ++i) b.x.push_back(bf16 ? RoundToBf16(normal(rng)) : normal(rng));
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<int32_t> pool;
    for (int32_t e = 0; e < num_experts - 2; ++e) pool.push_back(e);  // the last but one never, the last by row 0 only
    if (t == 0) pool.assign({num_experts - 1, 3, 0, 1});
    if (t != 0) std::shuffle(pool.begin() + 1, pool.end(), rng);  // expert 0 gets every row
    for (int i = 0; i < k; ++i) {
      b.chosen.push_back(pool[static_cast<size_t>(i)]);
      b.weights.push_back(0.25f + 0.5f * static_cast<float>(rng() % 100) / 100.0f);
    }
  }
  return b;
}

TEST(MoeExperts, MatchesOneExpertAtATimeBitForBit) {
  const Layer layer(7, 160, 96, 5);
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    for (const auto& [form, round] : {std::pair{ActivationForm::kFp8, true}, std::pair{ActivationForm::kFp8, false},
                                      std::pair{ActivationForm::kFloat32, false}}) {
      for (int64_t rows : {1, 3, 17, 150}) {
        const Batch b = MakeBatch(rows, 160, 7, 2, 9, round);
        for (int threads : {1, 3}) {
          ThreadPool pool(threads);
          PreparedActivations x;
          x.Prepare(pool, b.x.data(), rows, 160, 160, form);
          std::vector<float> out(static_cast<size_t>(rows * 160), NAN);
          MoeArgs args;
          args.x = &x;
          args.experts = layer.experts;
          args.shared = &layer.shared;
          args.num_chosen = 2;
          args.chosen = b.chosen.data();
          args.weights = b.weights.data();
          args.swiglu_limit = 2.5f;
          args.round_bf16 = round;
          args.out = out.data();
          args.ldo = 160;
          MoeExperts moe;
          moe.Run(pool, args);
          moe.Run(pool, args);  // buffers are reusable
          const std::vector<float> expected = layer.Reference(b.x, rows, 2, b.chosen, b.weights, 2.5f, round, form);
          ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
              << CpuIsaName(level) << " rows " << rows << " threads " << threads;
        }
      }
    }
  }
}

TEST(MoeExperts, PaddingRowsGetTheSharedExpertOnly) {
  const Layer layer(4, 64, 32, 6);
  ThreadPool pool(2);
  Batch b = MakeBatch(2, 64, 4, 2, 3, true);
  b.chosen[0] = b.chosen[1] = -1;
  PreparedActivations x;
  x.Prepare(pool, b.x.data(), 2, 64, 64, ActivationForm::kFp8);
  std::vector<float> out(128);
  MoeArgs args;
  args.x = &x;
  args.experts = layer.experts;
  args.shared = &layer.shared;
  args.num_chosen = 2;
  args.chosen = b.chosen.data();
  args.weights = b.weights.data();
  args.round_bf16 = true;
  args.out = out.data();
  args.ldo = 64;
  MoeExperts().Run(pool, args);
  const std::vector<float> expected = layer.Reference(b.x, 2, 2, b.chosen, b.weights, 0, true, ActivationForm::kFp8);
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace deepinfer::cpu
