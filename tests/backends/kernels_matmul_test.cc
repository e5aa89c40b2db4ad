// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/kernels/matmul.h"
#include "core/cpu_features.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

// A random matrix in stored form.
struct Stored {
  MatrixSource source;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;

  float At(int64_t r, int64_t c) const {
    const int64_t scale_cols = (source.cols + 31) / 32;
    switch (source.format) {
      case WeightFormat::kFp8Tile32:
        return E4M3ToFloat(data[static_cast<size_t>(r * source.cols + c)]) *
               E8M0ToFloat(scale[static_cast<size_t>(r / 32 * scale_cols + c / 32)]);
      case WeightFormat::kFp4Row32: {
        const uint8_t byte = data[static_cast<size_t>((r * source.cols + c) / 2)];
        return E2M1ToFloat(static_cast<uint8_t>(c & 1 ? byte >> 4 : byte & 15)) *
               E8M0ToFloat(scale[static_cast<size_t>(r * scale_cols + c / 32)]);
      }
      case WeightFormat::kBf16:
        return Bf16ToFloat(reinterpret_cast<const uint16_t*>(data.data())[r * source.cols + c]);
      case WeightFormat::kF32:
        return reinterpret_cast<const float*>(data.data())[r * source.cols + c];
    }
    return 0;
  }
};

Stored MakeStored(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Stored s;
  s.source.format = format;
  s.source.rows = rows;
  s.source.cols = cols;
  const int64_t scale_cols = (cols + 31) / 32;
  const auto random_scales = [&](int64_t count) {
    s.scale.resize(static_cast<size_t>(count));
    for (auto& b : s.scale) b = static_cast<uint8_t>(117 + rng() % 8);
  };
  switch (format) {
    case WeightFormat::kFp8Tile32:
      s.data.resize(static_cast<size_t>(rows * cols));
      for (auto& b : s.data) {
        b = static_cast<uint8_t>(rng());
        if ((b & 0x7f) == 0x7f) b ^= 1;  // no NaN
      }
      random_scales((rows + 31) / 32 * scale_cols);
      break;
    case WeightFormat::kFp4Row32:
      s.data.resize(static_cast<size_t>(rows * cols / 2));
      for (auto& b : s.data) b = static_cast<uint8_t>(rng());
      random_scales(rows * scale_cols);
      break;
    case WeightFormat::kBf16:
      s.data.resize(static_cast<size_t>(rows * cols * 2));
      for (int64_t i = 0; i < rows * cols; ++i) {
        reinterpret_cast<uint16_t*>(s.data.data())[i] = FloatToBf16(normal(rng));
      }
      break;
    case WeightFormat::kF32:
      s.data.resize(static_cast<size_t>(rows * cols * 4));
      for (int64_t i = 0; i < rows * cols; ++i) reinterpret_cast<float*>(s.data.data())[i] = normal(rng);
      break;
  }
  s.source.data = s.data.data();
  s.source.scale = s.scale.empty() ? nullptr : s.scale.data();
  return s;
}

std::vector<float> RandomInput(int64_t rows, int64_t cols, uint32_t seed, bool bf16) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (auto& v : x) v = bf16 ? RoundToBf16(normal(rng)) : normal(rng);
  return x;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kFp8Tile32, WeightFormat::kFp4Row32, WeightFormat::kBf16,
                                     WeightFormat::kF32};
constexpr ActivationForm kForms[] = {ActivationForm::kFloat32, ActivationForm::kBf16, ActivationForm::kFp8};

std::vector<float> Multiply(ThreadPool& pool, const Stored& w, const std::vector<float>& x, int64_t m,
                            ActivationForm form, Rounding rounding = Rounding::kNone) {
  const PackedMatrix packed = PackedMatrix::Pack({&w.source, 1});
  PreparedActivations prepared;
  prepared.Prepare(pool, x.data(), m, w.source.cols, w.source.cols, form);
  std::vector<float> y(static_cast<size_t>(m * w.source.rows), NAN);
  MatMul(pool, prepared, packed, y.data(), w.source.rows, rounding);
  return y;
}

TEST(PackedMatrix, KeepsEveryWeight) {
  for (WeightFormat format : kFormats) {
    const Stored w = MakeStored(format, 45, format == WeightFormat::kFp4Row32 ? 70 : 71, 3);
    const PackedMatrix packed = PackedMatrix::Pack({&w.source, 1});
    for (int64_t r = 0; r < 45; ++r) {
      for (int64_t c = 0; c < w.source.cols; ++c) ASSERT_EQ(packed.At(r, c), w.At(r, c)) << r << "," << c;
    }
  }
}

TEST(PackedMatrix, StackedSourcesStartNewTiles) {
  const Stored a = MakeStored(WeightFormat::kFp8Tile32, 40, 64, 1);
  const Stored b = MakeStored(WeightFormat::kFp8Tile32, 7, 64, 2);
  const MatrixSource sources[] = {a.source, b.source};
  const PackedMatrix packed = PackedMatrix::Pack(sources);
  EXPECT_EQ(packed.rows(), 47);
  EXPECT_EQ(packed.num_tiles(), 3);
  EXPECT_EQ(packed.TileOfRow(40), 2);
  for (int64_t r = 0; r < 47; ++r) {
    for (int64_t c = 0; c < 64; ++c) ASSERT_EQ(packed.At(r, c), r < 40 ? a.At(r, c) : b.At(r - 40, c));
  }
}

TEST(PreparedActivations, NanStaysNan) {
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    ThreadPool pool(1);
    for (WeightFormat format : kFormats) {
      const Stored w = MakeStored(format, 32, 64, 1);
      std::vector<float> x = RandomInput(2, 64, 7, true);
      x[40] = NAN;
      const std::vector<float> y = Multiply(pool, w, x, 2, ActivationForm::kFp8);
      int nans = 0;
      for (size_t i = 0; i < 32; ++i) nans += std::isnan(y[i]);
      EXPECT_EQ(nans, 32) << CpuIsaName(level) << " " << static_cast<int>(format);
      for (size_t i = 32; i < 64; ++i) EXPECT_FALSE(std::isnan(y[i]));
    }
  }
}

class Fp8Quantiser : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Levels, Fp8Quantiser, testing::ValuesIn(SupportedCpuIsas()),
                         [](const auto& level) { return std::string(CpuIsaName(level.param)); });

TEST_P(Fp8Quantiser, MatchesTheScalarEncoder) {
  const ScopedCpuIsa isa(GetParam());
  ThreadPool pool(1);
  std::vector<float> x = RandomInput(3, 96, 7, true);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] *= 1e-3f * static_cast<float>(i * i);
  for (int i = 32; i < 64; ++i) x[static_cast<size_t>(i)] = i == 40 ? -0.0f : 0.0f;
  PreparedActivations p;
  p.Prepare(pool, x.data(), 3, 96, 96, ActivationForm::kFp8);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t g = 0; g < 3; ++g) {
      float amax = 1e-4f;
      for (int64_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[static_cast<size_t>(r * 96 + g * 32 + i)]));
      const int e = CeilLog2(amax * (1.0f / 448.0f));
      for (int64_t i = 0; i < 32; ++i) {
        const float v = x[static_cast<size_t>(r * 96 + g * 32 + i)];
        const float expected = std::ldexp(E4M3ToFloat(FloatToE4M3(std::ldexp(v, -e))), e);
        ASSERT_EQ(std::bit_cast<uint32_t>(p.At(r, g * 32 + i)), std::bit_cast<uint32_t>(expected)) << r << " " << g << " " << i;
      }
    }
  }
}

TEST(MatMul, ScalarMatchesDoublePrecision) {
  const ScopedCpuIsa isa(CpuIsa::kScalar);
  ThreadPool pool(1);
  for (WeightFormat format : kFormats) {
    const Stored w = MakeStored(format, 37, 102, 11);
    const std::vector<float> x = RandomInput(3, 102, 5, true);
    const std::vector<float> y = Multiply(pool, w, x, 3, ActivationForm::kBf16);
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t r = 0; r < 37; ++r) {
        double sum = 0, norm = 0;
        for (int64_t c = 0; c < 102; ++c) {
          const double term = double{w.At(r, c)} * double{x[static_cast<size_t>(m * 102 + c)]};
          sum += term;
          norm += std::fabs(term);
        }
        ASSERT_NEAR(y[static_cast<size_t>(m * 37 + r)], sum, 1e-6 * norm + 1e-30);
      }
    }
  }
}

// Every fp8 and fp4 code on every level: a one-hot input reads one column of the weights back exactly.
TEST(MatMul, EveryCodeDecodesExactly) {
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    ThreadPool pool(1);
    for (WeightFormat format : {WeightFormat::kFp8Tile32, WeightFormat::kFp4Row32}) {
      Stored w = MakeStored(format, 256, 64, 1);
      for (size_t i = 0; i < w.data.size(); ++i) w.data[i] = static_cast<uint8_t>(i / (w.data.size() / 256) + i);
      if (format == WeightFormat::kFp8Tile32) {
        for (auto& b : w.data) b = (b & 0x7f) == 0x7f ? 0x7e : b;
      }
      w.scale[0] = 0;    // 2^-127
      w.scale[1] = 200;  // 2^73
      const int64_t counts[] = {1, 2, 3, 4, 5, 8, 64};
      for (int64_t m : counts) {
        std::vector<float> x(static_cast<size_t>(m * 64), 0.0f);
        for (int64_t i = 0; i < m; ++i) x[static_cast<size_t>(i * 64 + i)] = 1.0f;
        const std::vector<float> y = Multiply(pool, w, x, m, ActivationForm::kBf16);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t r = 0; r < 256; ++r) {
            ASSERT_EQ(y[static_cast<size_t>(i * 256 + r)], w.At(r, i)) << CpuIsaName(level) << " " << m << " " << r << " " << i;
          }
        }
      }
    }
  }
}

TEST(MatMul, EveryLevelMatchesScalar) {
  ThreadPool pool(2);
  struct Shape {
    int64_t rows, cols;
  };
  for (CpuIsa level : SupportedCpuIsas()) {
    for (WeightFormat format : kFormats) {
      for (ActivationForm form : kForms) {
        for (const Shape shape : {Shape{160, 640}, Shape{33, 34}, Shape{1, 30}, Shape{96, 2304}}) {
          const Stored w = MakeStored(format, shape.rows, shape.cols, 21);
          for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 17, 129}) {
            if (m > 8 && shape.cols > 1000) continue;  // keep the suite short
            const std::vector<float> x = RandomInput(m, shape.cols, 5, form != ActivationForm::kFloat32);
            SetCpuIsa(CpuIsa::kScalar);
            const std::vector<float> expected = Multiply(pool, w, x, m, form);
            SetCpuIsa(level);
            const std::vector<float> y = Multiply(pool, w, x, m, form);
            SetCpuIsa(BestCpuIsa());
            double norm = 0, error = 0;
            for (size_t i = 0; i < y.size(); ++i) {
              norm = std::max(norm, std::fabs(double{expected[i]}));
              error = std::max(error, std::fabs(double{y[i]} - double{expected[i]}));
            }
            // AVX2 and NEON fuse the same products in the same order: exact whenever the products are. FP4 with quantised inputs
            // sums integers instead.
            const bool exact_products = form != ActivationForm::kFloat32 && format != WeightFormat::kF32 &&
                                        !(format == WeightFormat::kFp4Row32 && form == ActivationForm::kFp8);
            const bool fuses = level <= CpuIsa::kAvx2 || level == CpuIsa::kNeon;
            const double tolerance = fuses && exact_products ? 0 : 1e-6;
            ASSERT_LE(error, tolerance * norm) << CpuIsaName(level) << " format " << static_cast<int>(format) << " form "
                                               << static_cast<int>(form) << " M " << m << " " << shape.rows << "x" << shape.cols;
          }
        }
      }
    }
  }
}

// Inputs that need the low digits of the integer form, in some blocks only, against double precision.
TEST(MatMul, SmallQuantisedInputsCount) {
  const Stored w = MakeStored(WeightFormat::kFp4Row32, 64, 96, 31);
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    ThreadPool pool(1);
    for (int64_t m : {1, 2, 3, 4, 7, 20}) {
      std::vector<float> x = RandomInput(m, 96, 4, true);
      for (size_t i = 0; i < x.size(); ++i) {
        if (i / 32 % 2 == 1) x[i] = RoundToBf16(std::ldexp(x[i], -static_cast<int>(i % 18)));
      }
      PreparedActivations prepared;
      prepared.Prepare(pool, x.data(), m, 96, 96, ActivationForm::kFp8);
      const std::vector<float> y = Multiply(pool, w, x, m, ActivationForm::kFp8);
      for (int64_t t = 0; t < m; ++t) {
        for (int64_t r = 0; r < 64; ++r) {
          double sum = 0, norm = 0;
          for (int64_t c = 0; c < 96; ++c) {
            sum += double{w.At(r, c)} * double{prepared.At(t, c)};
            norm += std::fabs(double{w.At(r, c)} * double{prepared.At(t, c)});
          }
          ASSERT_NEAR(y[static_cast<size_t>(t * 64 + r)], sum, 3e-7 * norm) << CpuIsaName(level) << " " << t << " " << r;
        }
      }
    }
  }
}

// Exact sums per group: FP4 weights with quantised inputs give the same bits on every x86 level above scalar.
TEST(MatMul, Fp4BitsDoNotDependOnTheLevel) {
  const Stored w = MakeStored(WeightFormat::kFp4Row32, 64, 352, 19);
  std::vector<float> x = RandomInput(20, 352, 4, true);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i / 32 % 3 == 1) x[i] = RoundToBf16(std::ldexp(x[i], -static_cast<int>(i % 18)));
  }
  ThreadPool pool(1);
  for (int64_t m : {1, 2, 3, 4, 7, 20}) {
    std::vector<float> expected;
    for (CpuIsa level : SupportedCpuIsas()) {
      if (level < CpuIsa::kAvx2 || level >= CpuIsa::kNeon) continue;
      const ScopedCpuIsa isa(level);
      const std::vector<float> y = Multiply(pool, w, x, m, ActivationForm::kFp8);
      if (expected.empty()) expected = y;
      ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0) << CpuIsaName(level) << " M " << m;
    }
  }
}

// Blocks of zeros, of very small and of very large inputs: few and many inputs give the same finite bits.
TEST(MatMul, InputsOfAnyMagnitude) {
  constexpr int64_t kCols = 32 * 7;
  const float magnitudes[7] = {0.0f, 1e-36f, 1e-20f, 1e-6f, 1.0f, 1e6f, 1e20f};
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    ThreadPool pool(1);
    for (WeightFormat format : kFormats) {
      const Stored w = MakeStored(format, 64, kCols, 77);
      for (ActivationForm form : kForms) {
        std::vector<float> x = RandomInput(20, kCols, 3, form != ActivationForm::kFloat32);
        for (int64_t i = 0; i < 20 * kCols; ++i) {
          float& value = x[static_cast<size_t>(i)];
          // One block a row is of another magnitude, the rest is silent, so that nothing drowns.
          const int64_t row = i / kCols, block = i % kCols / 32;
          value = block == row % 7 ? value * magnitudes[block] : 0.0f;
          if (form != ActivationForm::kFloat32) value = RoundToBf16(value);
        }
        const std::vector<float> many = Multiply(pool, w, x, 20, form);
        for (const float v : many) ASSERT_TRUE(std::isfinite(v)) << CpuIsaName(level);
        for (int64_t row = 0; row < 20; ++row) {
          const std::vector<float> one(x.begin() + row * kCols, x.begin() + (row + 1) * kCols);
          const std::vector<float> y = Multiply(pool, w, one, 1, form);
          for (size_t r = 0; r < y.size(); ++r) {
            ASSERT_EQ(y[r], many[static_cast<size_t>(row) * y.size() + r])
                << CpuIsaName(level) << " format " << static_cast<int>(format) << " form " << static_cast<int>(form) << " row " << row;
          }
        }
      }
    }
  }
}

TEST(MatMul, SameBitsForAnyNumberOfInputsAndThreads) {
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    for (WeightFormat format : kFormats) {
      for (ActivationForm form : kForms) {
        const Stored w = MakeStored(format, 96, 512, 8);
        const std::vector<float> x = RandomInput(130, 512, 9, form != ActivationForm::kFloat32);
        ThreadPool one(1);
        const std::vector<float> all = Multiply(one, w, x, 130, form);
        ThreadPool three(3);
        const std::vector<float> threaded = Multiply(three, w, x, 130, form);
        ASSERT_EQ(std::memcmp(all.data(), threaded.data(), all.size() * sizeof(float)), 0);
        for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 64, 65}) {
          const std::vector<float> y = Multiply(three, w, x, m, form);
          ASSERT_EQ(std::memcmp(all.data(), y.data(), y.size() * sizeof(float)), 0)
              << CpuIsaName(level) << " format " << static_cast<int>(format) << " M " << m;
        }
      }
    }
  }
}

TEST(MatMul, NodesAndThreadsChangeNoBit) {
  const Stored w = MakeStored(WeightFormat::kFp4Row32, 300, 96, 1);
  const std::vector<float> x = RandomInput(70, 96, 5, true);
  ThreadPool one(1);
  const std::vector<float> expected = Multiply(one, w, x, 70, ActivationForm::kFp8);
  CpuTopology nodes;  // simulated
  for (int i = 0; i < 3; ++i) nodes.nodes.push_back({i, {i}});
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads, nodes, CpuPinning::kNone);
    EXPECT_EQ(Multiply(pool, w, x, 70, ActivationForm::kFp8), expected);
  }
}

TEST(MatMul, RowRangesAndRounding) {
  ThreadPool pool(2);
  const Stored a = MakeStored(WeightFormat::kFp8Tile32, 40, 64, 1);
  const Stored b = MakeStored(WeightFormat::kFp8Tile32, 64, 64, 2);
  const MatrixSource sources[] = {a.source, b.source};
  const PackedMatrix packed = PackedMatrix::Pack(sources, &pool);
  const std::vector<float> x = RandomInput(5, 64, 5, true);
  PreparedActivations prepared;
  prepared.Prepare(pool, x.data(), 5, 64, 64, ActivationForm::kFp8);
  std::vector<float> y(5 * 104), part(5 * 64);
  MatMul(pool, prepared, packed, y.data(), 104, Rounding::kBf16);
  MatMul(pool, prepared, packed, 40, 64, part.data(), 64, Rounding::kBf16);
  const std::vector<float> exact = Multiply(pool, b, x, 5, ActivationForm::kFp8);
  for (size_t m = 0; m < 5; ++m) {
    for (size_t r = 0; r < 64; ++r) {
      ASSERT_EQ(part[m * 64 + r], y[m * 104 + 40 + r]);
      ASSERT_EQ(part[m * 64 + r], RoundToBf16(exact[m * 64 + r]));
    }
  }
}

TEST(GroupedMatMul, EachGroupReadsItsSlice) {
  ThreadPool pool(2);
  for (CpuIsa level : SupportedCpuIsas()) {
    const ScopedCpuIsa isa(level);
    const Stored w = MakeStored(WeightFormat::kFp8Tile32, 4 * 48, 128, 4);
    std::vector<Stored> groups;
    std::vector<MatrixSource> sources;
    for (uint32_t g = 0; g < 4; ++g) groups.push_back(MakeStored(WeightFormat::kFp8Tile32, 48, 128, 50 + g));
    for (const Stored& g : groups) sources.push_back(g.source);
    const PackedMatrix packed = PackedMatrix::Pack(sources);
    for (int64_t m : {1, 7, 70}) {
      const std::vector<float> x = RandomInput(m, 512, 6, true);
      PreparedActivations prepared;
      prepared.Prepare(pool, x.data(), m, 512, 512, ActivationForm::kBf16);
      std::vector<float> y(static_cast<size_t>(m * 192));
      GroupedMatMul(pool, prepared, packed, 4, y.data(), 192, Rounding::kNone);
      for (size_t g = 0; g < 4; ++g) {
        std::vector<float> slice(static_cast<size_t>(m * 128));
        for (size_t t = 0; t < static_cast<size_t>(m); ++t) {
          for (size_t c = 0; c < 128; ++c) slice[t * 128 + c] = x[t * 512 + g * 128 + c];
        }
        const std::vector<float> expected = Multiply(pool, groups[g], slice, m, ActivationForm::kBf16);
        for (size_t t = 0; t < static_cast<size_t>(m); ++t) {
          for (size_t r = 0; r < 48; ++r) ASSERT_EQ(y[t * 192 + g * 48 + r], expected[t * 48 + r]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cpu
