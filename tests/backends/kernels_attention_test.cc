// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/kernels/attention.h"
#include "core/cpu_features.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

std::vector<float> Normal(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x) v = RoundToBf16(normal(rng));
  return x;
}

struct Case {
  int heads, dim;
  std::vector<int> num_keys;  // per row
};

struct Inputs {
  std::vector<float> query, keys, sink;
};

Inputs MakeInputs(const Case& c) {
  const size_t rows = c.num_keys.size();
  const int max_keys = *std::max_element(c.num_keys.begin(), c.num_keys.end());
  return {Normal(rows * static_cast<size_t>(c.heads * c.dim), 1),
          Normal(rows * static_cast<size_t>(std::max(max_keys, 1) * c.dim), 2), Normal(static_cast<size_t>(c.heads), 3)};
}

std::vector<float> RunAll(ThreadPool& pool, const Case& c, const Inputs& in, bool round) {
  const int max_keys = std::max(1, *std::max_element(c.num_keys.begin(), c.num_keys.end()));
  std::vector<float> out(in.query.size(), NAN);
  SparseAttention attention;
  SparseAttention::Shape shape;
  shape.heads = c.heads;
  shape.dim = c.dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  shape.sink = in.sink.data();
  shape.round_bf16 = round;
  shape.max_keys = max_keys;
  attention.Run(
      pool, shape, static_cast<int64_t>(c.num_keys.size()), [&](int64_t row) { return c.num_keys[static_cast<size_t>(row)]; },
      [&](int64_t row, int first, int last, const float** keys, float* scratch) {
        for (int i = first; i < last; ++i) {
          keys[i] = in.keys.data() + (row * max_keys + i) * c.dim;
          if (i % 3 != 0) continue;  // some keys in place, some decoded into the scratch
          float* copy = scratch + i * KeyStride(c.dim);
          std::copy_n(keys[i], c.dim, copy);
          keys[i] = copy;
        }
      },
      [&](int64_t row) { return in.query.data() + row * c.heads * c.dim; },
      [&](int64_t row) { return out.data() + row * c.heads * c.dim; }, [](int64_t, int, int) {});
  return out;
}

// In double precision, P rounded like the model stores it.
std::vector<double> Reference(const Case& c, const Inputs& in, bool round) {
  const int max_keys = std::max(1, *std::max_element(c.num_keys.begin(), c.num_keys.end()));
  std::vector<double> out(in.query.size(), 0.0);
  for (size_t row = 0; row < c.num_keys.size(); ++row) {
    const auto n = static_cast<size_t>(c.num_keys[row]);
    for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
      const auto dim = static_cast<size_t>(c.dim);
      const float* q = in.query.data() + (row * static_cast<size_t>(c.heads) + h) * dim;
      std::vector<double> z(n);
      double top = -1e30;
      for (size_t i = 0; i < n; ++i) {
        const float* k = in.keys.data() + (row * static_cast<size_t>(max_keys) + i) * dim;
        for (size_t d = 0; d < dim; ++d) z[i] += double{q[d]} * double{k[d]};
        z[i] /= std::sqrt(static_cast<double>(dim));
        top = std::max(top, z[i]);
      }
      double den = n == 0 ? 1 : std::exp(double{in.sink[h]} - top);
      for (auto& v : z) {
        v = std::exp(v - top);
        den += v;
        if (round) v = double{RoundToBf16(static_cast<float>(v))};
      }
      for (size_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (size_t i = 0; i < n; ++i) {
          sum += z[i] * double{in.keys[(row * static_cast<size_t>(max_keys) + i) * dim + d]};
        }
        out[(row * static_cast<size_t>(c.heads) + h) * dim + d] = sum / den;
      }
    }
  }
  return out;
}

const Case kCases[] = {
    {4, 64, {1}}, {4, 64, {0, 5, 16, 17}}, {5, 32, {3, 9}}, {64, 512, {640}}, {8, 512, {129, 2, 640}}, {7, 16, {40}},
    {64, 64, {33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45}},
};

TEST(SparseAttention, EveryLevelMatchesDoublePrecision) {
  ThreadPool pool(2);
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    for (const Case& c : kCases) {
      const Inputs in = MakeInputs(c);
      for (bool round : {false, true}) {
        const std::vector<float> out = RunAll(pool, c, in, round);
        const std::vector<double> expected = Reference(c, in, round);
        double norm = 0, error = 0;
        for (size_t i = 0; i < out.size(); ++i) {
          norm += expected[i] * expected[i];
          error += (double{out[i]} - expected[i]) * (double{out[i]} - expected[i]);
        }
        // bf16 results differ by up to half a unit of 2^-8.
        ASSERT_LE(std::sqrt(error), (round ? 3e-3 : 2e-6) * std::sqrt(norm) + 1e-30)
            << CpuIsaName(level) << " heads " << c.heads << " dim " << c.dim;
      }
    }
  }
}

TEST(SparseAttention, SameBitsForAnyThreadsAndRows) {
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    for (const Case& c : kCases) {
      const Inputs in = MakeInputs(c);
      ThreadPool one(1), four(4);
      const std::vector<float> a = RunAll(one, c, in, true);
      const std::vector<float> b = RunAll(four, c, in, true);
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << CpuIsaName(level) << " heads " << c.heads;
    }
  }
}

TEST(AttentionExp, WithinTwoUnitsInTheLastPlace) {
  for (float x = -87.3f; x < 88.5f; x += 0.00731f) {
    const float y = AttentionExp(x);
    const double exact = std::exp(double{x});
    ASSERT_NEAR(double{y} / exact, 1.0, 2.4e-7) << x;
  }
  EXPECT_EQ(AttentionExp(0.0f), 1.0f);
  EXPECT_EQ(AttentionExp(-1e30f), 0.0f);
  EXPECT_TRUE(std::isinf(AttentionExp(1e30f)));
}

}  // namespace
}  // namespace deepinfer::cpu
