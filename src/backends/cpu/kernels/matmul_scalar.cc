// SPDX-License-Identifier: Apache-2.0
//
// The definition of the tile kernels: order of sums as written in matmul.h, one product and one sum at a time.
#include <bit>

#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/matmul_kernels.h"
#include "core/dtypes.h"

namespace deepinfer::cpu {
namespace {

// Decoders of one group: weights [32 rows][32 k] without scale. The layouts are explained in matmul.cc.
void DecodeFp4(const uint8_t* group, float* w) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int k = 0; k < kGroupK; ++k) {
      const uint8_t byte = group[(k / 8) * 128 + row * 4 + (k % 4) / 2 + (k & 1) * 2];
      w[row * kGroupK + k] = E2M1ToFloat(static_cast<uint8_t>(k % 8 < 4 ? byte & 15 : byte >> 4));
    }
  }
}

void DecodeFp8(const uint8_t* group, float* w) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int k = 0; k < kGroupK; ++k) {
      w[row * kGroupK + k] = E4M3ToFloat(group[(k / 4) * 128 + row * 4 + (k % 4) / 2 + (k & 1) * 2]);
    }
  }
}

void DecodeBf16(const uint8_t* group, float* w) {
  const auto* bits = reinterpret_cast<const uint16_t*>(group);
  for (int row = 0; row < kTileRows; ++row) {
    for (int k = 0; k < kGroupK; ++k) w[row * kGroupK + k] = Bf16ToFloat(bits[(k / 2) * 64 + row * 2 + (k & 1)]);
  }
}

void DecodeF32(const uint8_t* group, float* w) {
  const auto* values = reinterpret_cast<const float*>(group);
  for (int row = 0; row < kTileRows; ++row) {
    for (int k = 0; k < kGroupK; ++k) w[row * kGroupK + k] = values[k * kTileRows + row];
  }
}

enum class Scale { kNone, kPerTile, kPerRow };

template <void (*kDecode)(const uint8_t*, float*), Scale kScale>
void Tile(const TileTask& task, int64_t group_bytes) {
  float w[kTileRows * kGroupK];
  for (int i = 0; i < task.num_m * kTileRows; ++i) task.out[i] = 0.0f;
  for (int64_t group = 0; group < task.num_groups; ++group) {
    kDecode(task.weights + group * group_bytes, w);
    const float* x = task.values + group * task.group_rows * kGroupK;
    for (int m = 0; m < task.num_m; ++m) {
      const float* xm = x + int64_t{task.row_idx[m]} * kGroupK;
      for (int row = 0; row < kTileRows; ++row) {
        float sum = 0.0f;
        for (int k = 0; k < kGroupK; ++k) sum += w[row * kGroupK + k] * xm[k];
        float scale = 1.0f;
        if constexpr (kScale == Scale::kPerTile) scale = reinterpret_cast<const float*>(task.scales)[group];
        if constexpr (kScale == Scale::kPerRow) scale = E8M0ToFloat(task.scales[group * kTileRows + row]);
        task.out[m * kTileRows + row] += sum * scale;
      }
    }
  }
}

void TileFp8(const TileTask& task) { Tile<DecodeFp8, Scale::kPerTile>(task, 1024); }
void TileFp4(const TileTask& task) { Tile<DecodeFp4, Scale::kPerRow>(task, 512); }
void TileBf16(const TileTask& task) { Tile<DecodeBf16, Scale::kNone>(task, 2048); }
void TileF32(const TileTask& task) { Tile<DecodeF32, Scale::kNone>(task, 4096); }

}  // namespace

const MatMulKernels kMatMulScalar = {TileFp8, TileFp4, TileBf16, TileF32};

}  // namespace deepinfer::cpu
