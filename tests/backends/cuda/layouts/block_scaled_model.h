// SPDX-License-Identifier: Apache-2.0
//
// A model of the block-scaled tensor-core instructions of Blackwell GPUs in plain C++, after the PTX instruction set: it reads
// operands, scales and descriptors as the hardware does and knows nothing of how the kernels lay them out.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtypes.h"

namespace deepinfer::cuda {

inline float Value(int format, uint8_t code) {
  return format == 5 ? E2M1ToFloat(code) : E4M3ToFloat(code);
}
inline float Scaled(float value, uint8_t scale) { return std::ldexp(value, scale - 127); }

inline uint32_t Bits(uint64_t value, int first, int count) {
  return static_cast<uint32_t>(value >> first & ((uint64_t{1} << count) - 1));
}

// ---- tcgen05: shared memory, tensor memory, one block ----
class Tcgen05Model {
 public:
  explicit Tcgen05Model(size_t shared_bytes) : shared(shared_bytes), memory_(128 * kColumns) {}

  std::vector<uint8_t> shared;

  // tcgen05.cp.32x128b.warpx4: 32 rows of 16 bytes become four columns of 32 lanes, in each quarter of the lanes.
  void CopyScales(uint32_t tmem, uint64_t descriptor) {
    const Matrix m = Decode(descriptor);
    ASSERT_EQ(m.swizzle, 0u);
    ASSERT_EQ(tmem >> 16, 0u);
    for (int row = 0; row < 32; ++row) {
      for (int column = 0; column < 4; ++column) {
        uint32_t word;
        std::memcpy(&word, At(m.start + static_cast<uint32_t>(row / 8) * m.stride + static_cast<uint32_t>(row % 8 * 16 + column * 4)), 4);
        for (int quarter = 0; quarter < 4; ++quarter) Word(quarter * 32 + row, static_cast<int>(tmem) + column) = word;
      }
    }
  }

  // tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X with both operands in shared memory.
  void Multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction, uint32_t scales_a, uint32_t scales_b, bool adds) {
    ASSERT_EQ(Bits(instruction, 0, 4), 0u) << "dense";
    ASSERT_EQ(Bits(instruction, 6, 1), 0u);
    ASSERT_EQ(Bits(instruction, 13, 4), 0u) << "neither negated nor transposed";
    ASSERT_EQ(Bits(instruction, 23, 1), 1u) << "scales are ue8m0";
    ASSERT_EQ(Bits(instruction, 24, 3), 0u);
    ASSERT_EQ(Bits(instruction, 31, 1), 0u) << "K = 32";
    const int n = static_cast<int>(Bits(instruction, 17, 6)) * 8, m = static_cast<int>(Bits(instruction, 27, 2)) * 128;
    ASSERT_EQ(m, 128);
    ASSERT_TRUE(n >= 8 && n <= 256);
    const std::vector<float> x = Operand(a, static_cast<int>(Bits(instruction, 7, 3)), m, scales_a, static_cast<int>(Bits(instruction, 29, 2)));
    const std::vector<float> y = Operand(b, static_cast<int>(Bits(instruction, 10, 3)), n, scales_b, static_cast<int>(Bits(instruction, 4, 2)));
    for (int row = 0; row < m; ++row) {
      const float* xs = &x[static_cast<size_t>(row) * kK];
      bool is_zero = true;
      for (int k = 0; k < kK; ++k) is_zero = is_zero && xs[k] == 0;
      for (int column = 0; column < n; ++column) {
        const float* ys = &y[static_cast<size_t>(column) * kK];
        float sum = 0;
        for (int k = 0; k < kK && !is_zero; ++k) sum += xs[k] * ys[k];
        uint32_t& at = Word(row, static_cast<int>(sums) + column);
        at = std::bit_cast<uint32_t>(adds ? std::bit_cast<float>(at) + sum : sum);
      }
    }
  }

  float Sum(int lane, int column) { return std::bit_cast<float>(Word(lane, column)); }

 private:
  static constexpr int kColumns = 512;
  static constexpr int kK = 32;

  struct Matrix {
    uint32_t start, stride, swizzle;
  };
  Matrix Decode(uint64_t descriptor) {
    EXPECT_EQ(Bits(descriptor, 46, 3), 1u) << "the constant of a descriptor";
    EXPECT_EQ(Bits(descriptor, 49, 3), 0u) << "matrices begin where the swizzle does";
    EXPECT_EQ(Bits(descriptor, 52, 9), 0u);
    return {Bits(descriptor, 0, 14) << 4, Bits(descriptor, 32, 14) << 4, Bits(descriptor, 61, 3)};
  }
  const uint8_t* At(uint32_t address) { return &shared.at(address); }
  uint32_t& Word(int lane, int column) { return memory_.at(static_cast<size_t>(lane * kColumns + column)); }

  // Rows of 32 values, K along the row, with their scales.
  std::vector<float> Operand(uint64_t descriptor, int format, int rows, uint32_t scales, int byte) {
    const Matrix m = Decode(descriptor);
    EXPECT_EQ(m.swizzle, 2u) << "128 bytes";
    std::vector<float> values(static_cast<size_t>(rows) * kK);
    for (int row = 0; row < rows; ++row) {
      uint8_t scale = 0;
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint32_t word = Word(quarter * 32 + row % 32, static_cast<int>(scales) + row / 32);
        const uint8_t copy = static_cast<uint8_t>(word >> (8 * byte));
        EXPECT_TRUE(quarter == 0 || copy == scale) << "every quarter of the lanes has the scales";
        scale = copy;
      }
      for (int k = 0; k < kK; ++k) {
        // 4-bit values: sixteen in the first half of 16 bytes.
        const int offset = format == 5 ? k / 16 * 16 + k % 16 / 2 : k;
        uint32_t address = m.start + static_cast<uint32_t>(row / 8) * m.stride + static_cast<uint32_t>(row % 8 * 128 + offset);
        address ^= (address >> 7 & 7) << 4;
        const uint8_t stored = *At(address);
        const uint8_t code = format == 5 ? static_cast<uint8_t>(stored >> (4 * (k % 2)) & 15) : stored;
        values[static_cast<size_t>(row * kK + k)] = Scaled(Value(format, code), scale);
      }
    }
    return values;
  }

  std::vector<uint32_t> memory_;  // [lane][column]
};

// ---- a warp of sm_120a ----
template <int kRegisters>
using WarpRegisters = std::array<std::array<uint32_t, kRegisters>, 32>;  // [lane]

// ldmatrix.m8n8.x4.b16: address[lane] is a row of 16 bytes of matrix lane / 8.
inline WarpRegisters<4> LoadMatrices(const uint8_t* shared, const std::array<int, 32>& address) {
  WarpRegisters<4> r;
  for (size_t lane = 0; lane < 32; ++lane) {
    for (size_t i = 0; i < 4; ++i) std::memcpy(&r[lane][i], shared + address[8 * i + lane / 4] + lane % 4 * 4, 4);
  }
  return r;
}

// mma.sync.m16n8k32 kind::mxf8f6f4.block_scale.scale_vec::1X, selectors {byte_id, thread_id} for both scales. Formats: 0 e4m3,
// 5 e2m1, whose code lies in bits 2 to 5 of its byte.
inline void MultiplyWarp(int format_a, int format_b, const WarpRegisters<4>& a, const WarpRegisters<2>& b, std::array<std::array<float, 4>, 32>& c,
                         const std::array<uint32_t, 32>& scales_a, const std::array<uint32_t, 32>& scales_b, int byte_id, int thread_id) {
  const auto value = [](int format, uint32_t reg, int byte) {
    const uint8_t stored = static_cast<uint8_t>(reg >> (8 * byte));
    if (format != 5) return Value(format, stored);
    EXPECT_EQ(stored & 0xc3, 0);
    return Value(format, static_cast<uint8_t>(stored >> 2));
  };
  float x[16][32], y[8][32];
  for (int row = 0; row < 16; ++row) {
    const uint8_t scale = static_cast<uint8_t>(scales_a[static_cast<size_t>(row % 8 * 4 + thread_id * 2 + row / 8)] >> (8 * byte_id));
    for (int k = 0; k < 32; ++k)
      x[row][k] = Scaled(value(format_a, a[static_cast<size_t>(row % 8 * 4 + k % 16 / 4)][static_cast<size_t>(row / 8 + k / 16 * 2)], k % 4), scale);
  }
  for (int column = 0; column < 8; ++column) {
    const uint8_t scale = static_cast<uint8_t>(scales_b[static_cast<size_t>(column * 4 + thread_id)] >> (8 * byte_id));
    for (int k = 0; k < 32; ++k)
      y[column][k] = Scaled(value(format_b, b[static_cast<size_t>(column * 4 + k % 16 / 4)][static_cast<size_t>(k / 16)], k % 4), scale);
  }
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < 32; ++k) sum += x[row][k] * y[column][k];
      c[static_cast<size_t>(row % 8 * 4 + column / 2)][static_cast<size_t>(row / 8 * 2 + column % 2)] += sum;
    }
  }
}

}  // namespace deepinfer::cuda
